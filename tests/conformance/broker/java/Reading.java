import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/** What consumers are told and given. */
final class Reading {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long STALL_MS = 30_000;
    private static final Map<Long, OffsetSpec> SPECIAL =
        Map.of(-1L, OffsetSpec.latest(), -2L, OffsetSpec.earliest(), -3L, OffsetSpec.maxTimestamp());

    private final String bootstrap;

    Reading(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    /** Reads topics to their ends; a line for each partition: topic, partition, number and SHA-256 of its records. */
    List<String> digest(String isolation, List<String> topics) throws Exception {
        Map<TopicPartition, MessageDigest> digests = new LinkedHashMap<>();
        Map<TopicPartition, Long> counts = new HashMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(isolation, 1 << 20)) {
            for (String topic : topics)
                for (var partition : consumer.partitionsFor(topic))
                    digests.put(new TopicPartition(topic, partition.partition()), MessageDigest.getInstance("SHA-256"));
            consumer.assign(digests.keySet());
            consumer.seekToBeginning(digests.keySet());
            Map<TopicPartition, Long> ends = consumer.endOffsets(digests.keySet());
            long end = System.currentTimeMillis() + STALL_MS;
            while (ends.entrySet().stream().anyMatch(one -> consumer.position(one.getKey()) < one.getValue())) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    TopicPartition partition = new TopicPartition(record.topic(), record.partition());
                    digests.get(partition).update(bytes(record));
                    counts.merge(partition, 1L, Long::sum);
                    end = System.currentTimeMillis() + STALL_MS;
                }
                if (System.currentTimeMillis() > end)
                    throw new IllegalStateException("nothing came for " + STALL_MS + " ms");
            }
        }
        List<String> lines = new ArrayList<>();
        digests.forEach((partition, digest) -> lines.add(partition.topic() + " " + partition.partition() + " "
            + counts.getOrDefault(partition, 0L) + " " + HexFormat.of().formatHex(digest.digest())));
        return lines;
    }

    /**
     * Answers a file of {@code topic partition timestamp} lines, a line for each: offset, timestamp and leader epoch, with
     * {@code -} for what is not said.
     */
    List<String> times(Path queries) throws Exception {
        List<String> lines = Files.readAllLines(queries);
        String[] answers = new String[lines.size()];
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("read_uncommitted", 1 << 20);
             Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            // A question a partition in each round.
            Map<TopicPartition, List<Integer>> asked = new LinkedHashMap<>();
            for (int i = 0; i < lines.size(); i++)
                asked.computeIfAbsent(partition(lines.get(i)), any -> new ArrayList<>()).add(i);
            for (int round = 0; !asked.isEmpty(); round++) {
                Map<TopicPartition, Long> times = new HashMap<>();
                Map<TopicPartition, OffsetSpec> specials = new HashMap<>();
                for (var one : asked.entrySet()) {
                    long time = number(lines.get(one.getValue().get(round)));
                    if (time >= 0)
                        times.put(one.getKey(), time);
                    else
                        specials.put(one.getKey(), SPECIAL.get(time));
                }
                Map<TopicPartition, OffsetAndTimestamp> found = consumer.offsetsForTimes(times);
                for (TopicPartition partition : times.keySet())
                    answers[asked.get(partition).get(round)] = text(found.get(partition));
                var results = admin.listOffsets(specials).all().get();
                for (TopicPartition partition : specials.keySet())
                    answers[asked.get(partition).get(round)] = text(results.get(partition));
                int next = round + 1;
                asked.values().removeIf(those -> those.size() == next);
            }
        }
        return List.of(answers);
    }

    /**
     * Answers a file of {@code topic partition offset} lines, a line for each: the offset of the first record that a fetch from
     * there brings, {@code none} where it reaches the end without one, {@code out_of_range} where the broker refuses.
     */
    List<String> offsets(Path queries) throws Exception {
        List<String> answers = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("read_uncommitted", 1)) {
            for (String line : Files.readAllLines(queries)) {
                TopicPartition partition = partition(line);
                consumer.assign(List.of(partition));
                long end = consumer.endOffsets(List.of(partition)).get(partition);
                consumer.seek(partition, number(line));
                answers.add(first(consumer, partition, end));
            }
        }
        return answers;
    }

    private static String first(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, long end) {
        try {
            // Beyond the end the broker has to say so itself.
            while (consumer.position(partition) != end) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                if (!records.isEmpty())
                    return Long.toString(records.iterator().next().offset());
            }
            return "none";
        } catch (OffsetOutOfRangeException refused) {
            return "out_of_range";
        }
    }

    private static String text(OffsetAndTimestamp found) {
        if (found == null)
            return "- - -";
        return found.offset() + " " + found.timestamp() + " " + found.leaderEpoch().map(Object::toString).orElse("-");
    }

    private static String text(ListOffsetsResultInfo found) {
        return found.offset() + " " + found.timestamp() + " " + found.leaderEpoch().map(Object::toString).orElse("-");
    }

    private static TopicPartition partition(String line) {
        String[] words = line.split(" ");
        return new TopicPartition(words[0], Integer.parseInt(words[1]));
    }

    private static long number(String line) {
        return Long.parseLong(line.split(" ")[2]);
    }

    private static byte[] bytes(ConsumerRecord<byte[], byte[]> record) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        out.writeLong(record.offset());
        out.writeLong(record.timestamp());
        out.writeInt(record.timestampType().id);
        out.writeInt(record.leaderEpoch().orElse(-1));
        write(out, record.key());
        write(out, record.value());
        for (Header header : record.headers()) {
            out.writeUTF(header.key());
            write(out, header.value());
        }
        return bytes.toByteArray();
    }

    private static void write(DataOutputStream out, byte[] field) throws IOException {
        out.writeInt(field == null ? -1 : field.length);
        if (field != null)
            out.write(field);
    }

    private KafkaConsumer<byte[], byte[]> consumer(String isolation, int partitionBytes) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("isolation.level", isolation);
        config.put("auto.offset.reset", "none");
        config.put("enable.auto.commit", "false");
        config.put("fetch.max.wait.ms", "20");
        config.put("max.partition.fetch.bytes", Integer.toString(partitionBytes));
        config.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        config.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        return new KafkaConsumer<>(config);
    }
}
