import java.io.File;
import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Set;
import java.util.PriorityQueue;
import java.util.Optional;
import java.util.HashSet;
import java.util.Comparator;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;

import kafka.log.LogManager;
import kafka.log.LogManager$;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer$;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionRecord;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.image.TopicsDelta;
import org.apache.kafka.image.TopicsImage;
import org.apache.kafka.metadata.properties.MetaPropertiesEnsemble;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.FileLock;
import org.apache.kafka.storage.internals.checkpoint.LazyOffsetCheckpoints;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import scala.jdk.javaapi.CollectionConverters;

/**
 * What a broker of these directories does until it serves its partitions, in its own order and with its own classes:
 * {@code KafkaRaftServer.initializeLogDirs}, {@code LogManager.loadLogs}, then what becomes of each partition of the
 * metadata as the broker takes its leadership.
 */
final class Starting {
    private static final Logger LOG = LoggerFactory.getLogger(Starting.class);
    private static final int FETCH_BYTES = 1 << 20;
    // Fetches that end within a segment search its transaction index for a part of it.
    private static final int COMMITTED_FETCH_BYTES = 1 << 12;

    private Starting() {
    }

    private record Topic(Uuid id, int partitions, boolean isHere, List<Uuid> directories) {
    }

    /**
     * From NODE_ID, METADATA_DIR (empty: the first of them), DIRS, joined by commas, perhaps {@code @TIME,...}, and TOPIC=ID=PARTITIONS=NODE=DIRECTORY,...: the directory of each partition.
     * {@code exits REASON}, or {@code starts} and a field for each partition of the metadata:
     * {@code TOPIC-N served START END RANGES COMMITTED STABLE OFFSETS}, {@code TOPIC-N missing}, or {@code TOPIC-N unserved
     * REASON}; RANGES are those of the offsets that a consumer gets, {@code A..B,C..D}, or {@code -}, COMMITTED those with
     * read_committed, up to STABLE, the last stable offset; OFFSETS are the first at each of the times, -1 for none.
     */
    static String run(String[] fields) throws Exception {
        Exit.setExitProcedure((status, message) -> {
            throw new IllegalStateException("exit " + status);
        });
        Exit.setHaltProcedure((status, message) -> {
            throw new IllegalStateException("halt " + status);
        });
        KafkaConfig config = config(fields[1], fields[2], fields[3]);
        int node = Integer.parseInt(fields[1]);
        Map<String, Topic> topics = new TreeMap<>();
        Map<Uuid, Topic> byId = new LinkedHashMap<>();
        List<Long> times = new ArrayList<>();
        for (int i = 4; i < fields.length; i++) {
            if (fields[i].startsWith("@")) {
                Stream.of(fields[i].substring(1).split(",")).map(Long::valueOf).forEach(times::add);
                continue;
            }
            String[] parts = fields[i].split("=");
            List<Uuid> placed = Stream.of(parts[4].split(",")).map(Uuid::fromString).toList();
            Topic topic = new Topic(Uuid.fromString(parts[1]), Integer.parseInt(parts[2]), Integer.parseInt(parts[3]) == node, placed);
            topics.put(parts[0], topic);
            byId.put(topic.id(), topic);
        }
        LogManager manager = null;
        try {
            MetaPropertiesEnsemble ensemble = KafkaRaftServer$.MODULE$.initializeLogDirs(config, LOG, "")._1();
            LogDirFailureChannel failures = new LogDirFailureChannel(config.logDirs().size() + 1);
            manager = LogManager$.MODULE$.apply(config,
                CollectionConverters.asScala(new ArrayList<>(ensemble.errorLogDirs())).toSeq(), resource -> new Properties(),
                Schedulers.IDLE, Time.SYSTEM, new BrokerTopicStats(), failures);
            load(manager, log -> log.topicId().isEmpty() || isStray(byId.get(log.topicId().get()), log));
            manager.recoverAbandonedFutureLogs(node, image(topics, node));
            return "\tstarts" + serve(config, manager, failures, topics, times);
        } catch (Throwable refusal) {
            return "\texits\t" + (refusal.getClass().getSimpleName() + ": " + refusal.getMessage()).replaceAll("\\s", " ");
        } finally {
            if (manager != null)
                letGo(manager);
        }
    }

    private static TopicsImage image(Map<String, Topic> topics, int node) {
        TopicsDelta delta = new TopicsDelta(TopicsImage.EMPTY);
        topics.forEach((name, topic) -> {
            delta.replay(new TopicRecord().setName(name).setTopicId(topic.id()));
            for (int number = 0; topic.isHere() && number < topic.partitions(); number++)
                delta.replay(new PartitionRecord().setTopicId(topic.id()).setPartitionId(number).setReplicas(List.of(node))
                    .setIsr(List.of(node)).setLeader(node).setDirectories(List.of(topic.directories().get(number))));
        });
        return delta.apply();
    }

    private static boolean isStray(Topic topic, UnifiedLog log) {
        return topic == null || !topic.isHere() || log.topicPartition().partition() >= topic.partitions()
            || log.topicPartition().partition() < 0;
    }

    private static String serve(KafkaConfig config, LogManager manager, LogDirFailureChannel failures,
                                Map<String, Topic> topics, List<Long> times) throws Exception {
        Map<String, OffsetCheckpointFile> watermarks = new LinkedHashMap<>();
        for (String dir : config.logDirs()) {
            String path = new File(dir).getAbsolutePath();
            if (!failures.hasOfflineLogDir(path))
                watermarks.put(path, new OffsetCheckpointFile(new File(dir, "replication-offset-checkpoint"), failures));
        }
        LazyOffsetCheckpoints checkpoints = new LazyOffsetCheckpoints(watermarks);
        Map<TopicPartition, String> unserved = new LinkedHashMap<>();
        for (Map.Entry<String, Topic> entry : topics.entrySet())
            for (int number = 0; entry.getValue().isHere() && number < entry.getValue().partitions(); number++) {
                TopicPartition partition = new TopicPartition(entry.getKey(), number);
                unserved.put(partition, lead(manager, failures, checkpoints, partition, entry.getValue()));
            }
        List<String> offline = config.logDirs().stream().map(dir -> new File(dir).getAbsolutePath())
            .filter(failures::hasOfflineLogDir).collect(Collectors.toList());
        String metadata = new File(config.metadataLogDir()).getAbsolutePath();
        if (offline.size() == config.logDirs().size() || offline.contains(metadata))
            throw new IllegalStateException("halt: " + offline);
        // A reader comes after the start: what it takes offline may halt the broker, which has started.
        StringJoiner reply = new StringJoiner("\t", "\t", "");
        for (Map.Entry<TopicPartition, String> entry : unserved.entrySet())
            reply.add(entry.getKey() + " " + (entry.getValue().isEmpty() ? consumed(manager.getLog(entry.getKey(), false).get(), times)
                : entry.getValue()));
        return reply.toString();
    }

    /** Empty, or why a partition is not served. */
    private static String lead(LogManager manager, LogDirFailureChannel failures, LazyOffsetCheckpoints checkpoints,
                               TopicPartition partition, Topic topic) {
        UnifiedLog log = manager.getLog(partition, false).getOrElse(() -> null);
        if (log == null)
            return "missing";
        if (failures.hasOfflineLogDir(log.parentDir()))
            return "unserved offline";
        if (!log.topicId().get().equals(topic.id()))
            return "unserved InconsistentTopicId";
        try {
            long watermark = checkpoints.fetch(log.parentDir(), partition).orElse(0L);
            log.updateHighWatermark(watermark);
            log.updateHighWatermark(log.logEndOffset());
            return "";
        } catch (Throwable refusal) {
            return "unserved " + refusal.getClass().getSimpleName();
        }
    }

    private static String consumed(UnifiedLog log, List<Long> times) {
        List<long[]> ranges = new ArrayList<>();
        List<long[]> committed = new ArrayList<>();
        StringJoiner offsets = new StringJoiner(",");
        String end = "";
        try {
            consume(log, FetchIsolation.HIGH_WATERMARK, FETCH_BYTES, ranges);
            consume(log, FetchIsolation.TXN_COMMITTED, COMMITTED_FETCH_BYTES, committed);
            for (long time : times)
                offsets.add(String.valueOf(log.fetchOffsetByTimestamp(time, Optional.empty()).timestampAndOffsetOpt()
                    .map(found -> found.offset).orElse(-1L)));
        } catch (Throwable refusal) {
            end = " " + refusal.getClass().getSimpleName();
        }
        return "served " + log.logStartOffset() + " " + log.logEndOffset() + " " + text(ranges) + " " + text(committed) + " "
            + log.lastStableOffset() + " " + (offsets.length() == 0 ? "-" : offsets) + end;
    }

    private static String text(List<long[]> ranges) {
        return ranges.isEmpty() ? "-" : ranges.stream().map(range -> range[0] + ".." + range[1]).collect(Collectors.joining(","));
    }

    /** As CompletedFetch does, with the transactions that are aborted. */
    private static void consume(UnifiedLog log, FetchIsolation isolation, int size, List<long[]> ranges) throws Exception {
        long next = log.logStartOffset();
        while (next < log.logEndOffset()) {
            FetchDataInfo fetched = log.read(next, size, isolation, true);
            if (fetched.records.sizeInBytes() == 0)
                break;
            PriorityQueue<FetchResponseData.AbortedTransaction> aborted = new PriorityQueue<>(
                Comparator.comparingLong(FetchResponseData.AbortedTransaction::firstOffset));
            aborted.addAll(fetched.abortedTransactions.orElse(List.of()));
            Set<Long> producers = new HashSet<>();
            ByteBuffer bytes = ByteBuffer.allocate(fetched.records.sizeInBytes());
            ((FileRecords) fetched.records).readInto(bytes, 0);
            long before = next;
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(bytes).batches()) {
                batch.ensureValid();
                while (!aborted.isEmpty() && aborted.peek().firstOffset() <= batch.lastOffset())
                    producers.add(aborted.poll().producerId());
                if (batch.isControlBatch())
                    producers.remove(batch.producerId());
                boolean isAborted = batch.isTransactional() && producers.contains(batch.producerId());
                for (Record each : batch)
                    if (!batch.isControlBatch() && !isAborted && each.offset() >= next)
                        add(ranges, each.offset());
                next = Math.max(next, batch.nextOffset());
            }
            if (next == before)
                break;
        }
    }

    private static void add(List<long[]> ranges, long offset) {
        long[] last = ranges.isEmpty() ? null : ranges.get(ranges.size() - 1);
        if (last != null && last[1] == offset - 1)
            last[1] = offset;
        else
            ranges.add(new long[] {offset, offset});
    }

    static KafkaConfig config(String node, String metadata, String directories) {
        Properties properties = new Properties();
        properties.put("node.id", node);
        properties.put("process.roles", "broker,controller");
        properties.put("listeners", "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2");
        properties.put("controller.listener.names", "CONTROLLER");
        properties.put("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT");
        properties.put("controller.quorum.voters", node + "@127.0.0.1:2");
        properties.put("log.dirs", directories);
        properties.put("num.recovery.threads.per.data.dir", "1");
        if (!metadata.isEmpty())
            properties.put("metadata.log.dir", metadata);
        return new KafkaConfig(properties, false);
    }

    /** Scala's {@code private[log]}, which Java code sees, but not javac everywhere. */
    private static void load(LogManager manager, java.util.function.Predicate<UnifiedLog> isStray) throws Throwable {
        Method method = java.util.Arrays.stream(LogManager.class.getMethods())
            .filter(each -> each.getName().equals("loadLogs")).findFirst().orElseThrow();
        scala.Function1<UnifiedLog, Object> function = isStray::test;
        LogConfig settings = manager.currentDefaultConfig();
        try {
            method.invoke(manager, settings, scala.collection.immutable.Map$.MODULE$.empty(), function);
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            throw thrown.getCause();
        }
    }

    private static void letGo(LogManager manager) {
        for (UnifiedLog log : CollectionConverters.asJava(manager.allLogs()))
            log.closeHandlers();
        try {
            Object locks = LogManager.class.getMethod("dirLocks").invoke(manager);
            for (Object lock : CollectionConverters.asJava((scala.collection.Seq<?>) locks))
                ((FileLock) lock).destroy();
        } catch (ReflectiveOperationException | IOException ignored) {
            LOG.debug("a lock stays", ignored);
        }
    }
}
