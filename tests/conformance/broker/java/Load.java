import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.zip.CRC32;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.TransactionAbortableException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Continued load that writes down what was acknowledged, and what consumers and groups get of it later.
 *
 * <p>Usage: {@code Load BOOTSTRAP load LEDGER PREFIX SUFFIX} or {@code Load BOOTSTRAP bank LEDGER PREFIX PRODUCERS} until its
 * input ends, {@code Load BOOTSTRAP consume OUT ISOLATION TOPIC...}, or {@code Load BOOTSTRAP groups}. A line of a ledger has KIND, topic, partition, offset, timestamp, CRC-32 of
 * the value, and its id, with tabs between; KIND is {@code ack}, {@code commit}, {@code abort} or, of a record that was
 * consumed, {@code got}. That of a group's commit has {@code group}, group, topic, partition, offset, and when the commit
 * began and was acknowledged.
 */
public final class Load {
    private static final String PLAIN = "load.plain";
    private static final String PAYMENTS = "load.payments";
    private static final String PROFILES = "load.profiles";
    private static final String COPIES = "load.copies";
    private static final String BANK = "load.bank";
    private static final String TRIMMED = "load.trimmed";
    private static final String FLEETING = "load.fleeting";
    private static final int PARTITIONS = 2;
    private static final int BANK_PARTITIONS = 4;
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long PAUSE_MS = 15;
    private static final long STALL_MS = 60_000;
    private static final long QUIET_MS = 5_000;
    private static final Set<Class<?>> ABORTS =
        Set.of(TransactionAbortableException.class, InvalidTxnStateException.class, TimeoutException.class);

    private final String bootstrap;
    private final FileOutputStream ledger;
    private final String prefix;
    private final String suffix;
    private final List<Thread> threads = new ArrayList<>();
    private volatile boolean goesOn = true;
    private volatile Throwable failure;

    private Load(String bootstrap, FileOutputStream ledger, String prefix, String suffix) {
        this.bootstrap = bootstrap;
        this.ledger = ledger;
        this.prefix = prefix;
        this.suffix = suffix;
    }

    private interface Work {
        void run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        switch (args[1]) {
            case "load":
                try (FileOutputStream out = new FileOutputStream(args[2], true)) {
                    new Load(args[0], out, args[3], args.length > 4 ? args[4] : "").run();
                }
                break;
            case "bank":
                try (FileOutputStream out = new FileOutputStream(args[2], true)) {
                    new Load(args[0], out, args[3], "").bank(Integer.parseInt(args[4]));
                }
                break;
            case "consume":
                try (FileOutputStream out = new FileOutputStream(args[2])) {
                    new Load(args[0], out, "", "").consume(args[3], List.of(args).subList(4, args.length));
                }
                break;
            default:
                groups(args[0]);
        }
        Runtime.getRuntime().halt(0);
    }

    private void run() throws Exception {
        for (String codec : List.of("none", "zstd"))
            start(() -> produce("p" + codec, codec));
        start(() -> pay("lz4"));
        start(this::profile);
        start(() -> read("readers", "classic", List.of(PLAIN + suffix, PAYMENTS)));
        start(this::copy);
        await();
    }

    private void bank(int producers) throws Exception {
        for (int i = 0; i < producers; i++) {
            String who = "bank-" + i;
            start(() -> transfer(who));
        }
        start(() -> read("members", "consumer", List.of(BANK)));
        start(this::deleteRecords);
        start(this::recreate);
        await();
    }

    private void await() throws Exception {
        while (System.in.read() >= 0 && failure == null)
            Thread.onSpinWait();
        goesOn = false;
        for (Thread thread : threads)
            thread.join();
        if (failure != null) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private void start(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable thrown) {
                failure = thrown;
                thrown.printStackTrace();
            }
        });
        threads.add(thread);
        thread.start();
    }

    /** Idempotent, a few batches in flight. */
    private void produce(String who, String codec) throws Exception {
        try (KafkaProducer<String, String> producer = producer(codec, null)) {
            for (int round = 0; goesOn; round++) {
                List<Sent> sent = new ArrayList<>();
                for (int i = 0; i < 12; i++)
                    sent.add(send(producer, PLAIN + suffix, i % PARTITIONS, null, who + "-" + round + "-" + i));
                settle("ack", sent);
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    /** Transactions over both partitions, one in three aborted. */
    private void pay(String codec) throws Exception {
        try (KafkaProducer<String, String> producer = producer(codec, "pay")) {
            producer.initTransactions();
            for (int round = 0; goesOn; round++) {
                int number = round;
                transact(producer, () -> pay(producer, number));
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    private void pay(KafkaProducer<String, String> producer, int round) throws Exception {
        producer.beginTransaction();
        List<Sent> sent = new ArrayList<>();
        for (int i = 0; i < 9; i++) {
            sent.add(send(producer, PAYMENTS, i % PARTITIONS, null, "t-" + round + "-" + i));
            if (i % 4 == 3)
                producer.flush();
        }
        end(producer, round % 3 != 2, sent);
    }

    /** Transfers between accounts: the amounts of a transaction sum to 0. One in four is aborted. */
    private void transfer(String who) throws Exception {
        Random random = new Random(who.hashCode() + prefix.hashCode());
        try (KafkaProducer<String, String> producer = producer("none", who)) {
            producer.initTransactions();
            for (int round = 0; goesOn; round++) {
                String name = who + "-" + round;
                transact(producer, () -> transfer(producer, name, random));
                Thread.sleep(random.nextInt(15));
            }
        }
    }

    private void transfer(KafkaProducer<String, String> producer, String name, Random random) throws Exception {
        producer.beginTransaction();
        List<Sent> sent = new ArrayList<>();
        int transfers = 1 + random.nextInt(3);
        for (int i = 0; i < transfers; i++) {
            int amount = 1 + random.nextInt(100);
            for (int sign : new int[] {-1, 1})
                sent.add(send(producer, BANK, random.nextInt(BANK_PARTITIONS), null, name + "-" + i + "=" + sign * amount));
            if (random.nextInt(3) == 0) {
                producer.flush();
                Thread.sleep(random.nextInt(20) == 0 ? 1000 : random.nextInt(30));
            }
        }
        end(producer, random.nextInt(4) != 0, sent);
    }

    /** Deletes records of a topic that has only such. */
    private void deleteRecords() throws Exception {
        Random random = new Random(9);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
             KafkaProducer<String, String> producer = producer("none", null)) {
            for (int round = 0; goesOn; round++) {
                List<Sent> sent = new ArrayList<>();
                for (int i = 0; i < 20; i++)
                    sent.add(send(producer, TRIMMED, 0, null, "d-" + round + "-" + i));
                settle("ack", sent);
                if (round % 10 == 9) {
                    long before = sent.get(random.nextInt(20)).future().get().offset();
                    attempt(() ->
                        admin.deleteRecords(Map.of(new TopicPartition(TRIMMED, 0), RecordsToDelete.beforeOffset(before))).all().get());
                }
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    /** A topic that is deleted, and back under the same name. */
    private void recreate() throws Exception {
        Random random = new Random(11);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
             KafkaProducer<String, String> producer = producer("none", null)) {
            while (goesOn) {
                attempt(() -> admin.createTopics(List.of(new NewTopic(FLEETING, 2, (short) -1))).all().get());
                Thread.sleep(random.nextInt(1500));
                attempt(() -> producer.send(new ProducerRecord<>(FLEETING, random.nextInt(2), null, "fleeting")).get());
                attempt(() -> admin.deleteTopics(List.of(FLEETING)).all().get());
                Thread.sleep(random.nextInt(500));
            }
        }
    }

    /** Does what may fail while brokers are killed: the topic is there already, or no longer, or nobody can lead it. */
    private static void attempt(Work work) throws Exception {
        try {
            work.run();
        } catch (ExecutionException error) {
            Throwable cause = error.getCause();
            boolean hasNoBroker = cause instanceof InvalidReplicationFactorException;
            if (!(hasNoBroker || cause instanceof TopicExistsException || cause instanceof RetriableException))
                throw error;
        }
    }

    /** A compacted topic: few keys. */
    private void profile() throws Exception {
        try (KafkaProducer<String, String> producer = producer("gzip", null)) {
            Random random = new Random(7);
            for (int round = 0; goesOn; round++) {
                List<Sent> sent = new ArrayList<>();
                for (int i = 0; i < 8; i++) {
                    String key = "key-" + random.nextInt(60);
                    sent.add(send(producer, PROFILES, 0, key, "c-" + round + "-" + i + "-" + key));
                }
                settle("ack", sent);
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    /** A group of a protocol that commits after each poll. */
    private void read(String group, String protocol, List<String> topics) throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer(group, protocol, "read_committed")) {
            consumer.subscribe(topics);
            while (goesOn) {
                consumer.poll(POLL);
                Map<TopicPartition, OffsetAndMetadata> reached = new HashMap<>();
                for (TopicPartition partition : consumer.assignment())
                    reached.put(partition, new OffsetAndMetadata(consumer.position(partition)));
                long began = System.currentTimeMillis();
                try {
                    consumer.commitSync(reached);
                } catch (CommitFailedException | RebalanceInProgressException error) {
                    // The group has changed meanwhile: it polls again.
                    continue;
                }
                committed(group, reached, began);
            }
        }
    }

    /** Consumes, produces, and commits the offsets in a transaction, one in four of which is aborted. */
    private void copy() throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer("copiers" + suffix, "classic", "read_committed");
             KafkaProducer<String, String> producer = producer("snappy", "copy" + suffix)) {
            producer.initTransactions();
            List<TopicPartition> assigned = new ArrayList<>();
            for (int i = 0; i < PARTITIONS; i++)
                assigned.add(new TopicPartition(PLAIN + suffix, i));
            consumer.assign(assigned);
            for (int round = 0; goesOn; round++) {
                Map<TopicPartition, OffsetAndMetadata> before = new HashMap<>();
                for (TopicPartition partition : assigned)
                    before.put(partition, new OffsetAndMetadata(consumer.position(partition)));
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                if (records.isEmpty())
                    continue;
                producer.beginTransaction();
                List<Sent> sent = new ArrayList<>();
                for (ConsumerRecord<String, String> record : records)
                    sent.add(sendAs(producer, COPIES + suffix, record.partition(), null, "of " + record.value().split("\\|")[0]));
                Map<TopicPartition, OffsetAndMetadata> reached = new HashMap<>();
                for (TopicPartition partition : assigned)
                    reached.put(partition, new OffsetAndMetadata(consumer.position(partition)));
                producer.sendOffsetsToTransaction(reached, consumer.groupMetadata());
                boolean commits = round % 4 != 3;
                long began = System.currentTimeMillis();
                end(producer, commits, sent);
                if (commits)
                    committed("copiers" + suffix, reached, began);
                else
                    before.forEach((partition, offset) -> consumer.seek(partition, offset.offset()));
            }
        }
    }

    private record Sent(Future<RecordMetadata> future, String id, String value) {
    }

    private Sent send(KafkaProducer<String, String> producer, String topic, int partition, String key, String id) {
        return sendAs(producer, topic, partition, key, prefix + id);
    }

    private Sent sendAs(KafkaProducer<String, String> producer, String topic, int partition, String key, String id) {
        String value = id + "|" + Integer.toHexString(id.hashCode()).repeat(1 + Math.floorMod(id.hashCode(), 40));
        return new Sent(producer.send(new ProducerRecord<>(topic, partition, key, value)), id, value);
    }

    /** Runs a transaction; aborts it where the broker refuses a part of it as a replica moves, or answers too late. */
    private static void transact(KafkaProducer<String, String> producer, Work work) throws Exception {
        try {
            work.run();
        } catch (KafkaException | ExecutionException error) {
            Throwable cause = error;
            while (cause != null && !ABORTS.contains(cause.getClass()))
                cause = cause.getCause();
            if (cause == null)
                throw error;
            producer.abortTransaction();
        }
    }

    /** Ends a transaction all of whose records are acknowledged: a commit may leave out one that times out. */
    private void end(KafkaProducer<String, String> producer, boolean commits, List<Sent> sent) throws Exception {
        producer.flush();
        StringBuilder lines = settled(commits ? "commit" : "abort", sent);
        if (commits)
            producer.commitTransaction();
        else
            producer.abortTransaction();
        write(lines);
    }

    private void settle(String kind, List<Sent> sent) throws Exception {
        write(settled(kind, sent));
    }

    private static StringBuilder settled(String kind, List<Sent> sent) throws Exception {
        StringBuilder lines = new StringBuilder();
        for (Sent one : sent) {
            RecordMetadata at = one.future().get();
            append(lines, kind, at.topic(), at.partition(), at.offset(), at.timestamp(), crc(one.value()), one.id());
        }
        return lines;
    }

    private void committed(String group, Map<TopicPartition, OffsetAndMetadata> offsets, long began) throws Exception {
        long ended = System.currentTimeMillis();
        StringBuilder lines = new StringBuilder();
        offsets.forEach((partition, offset) ->
            append(lines, "group", group, partition.topic(), partition.partition(), offset.offset(), began, ended));
        write(lines);
    }

    private void consume(String isolation, List<String> topics) throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer(null, "classic", isolation)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (String topic : topics)
                consumer.partitionsFor(topic).forEach(one -> partitions.add(new TopicPartition(topic, one.partition())));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            Map<TopicPartition, Long> next = new HashMap<>();
            partitions.forEach(one -> next.put(one, 0L));
            long last = System.currentTimeMillis();
            while (true) {
                Map<TopicPartition, Long> rest = new HashMap<>(next);
                rest.keySet().removeIf(one -> consumer.position(one) >= ends.get(one));
                if (rest.isEmpty())
                    break;
                StringBuilder lines = new StringBuilder();
                for (ConsumerRecord<String, String> one : consumer.poll(POLL)) {
                    append(lines, "got", one.topic(), one.partition(), one.offset(), one.timestamp(), crc(one.value()),
                        one.value().split("\\|")[0]);
                    next.put(new TopicPartition(one.topic(), one.partition()), one.timestamp() + 1);
                    last = System.currentTimeMillis();
                }
                write(lines);
                long quiet = System.currentTimeMillis() - last;
                // The cleaner may have removed all that was between the last record and the end.
                if (quiet > QUIET_MS && consumer.offsetsForTimes(rest).values().stream().allMatch(Objects::isNull))
                    break;
                if (quiet > STALL_MS)
                    throw new IllegalStateException("nothing came for " + STALL_MS + " ms, at "
                        + partitions.stream().map(one -> one + "=" + consumer.position(one)).toList() + " of " + ends);
            }
            StringBuilder lines = new StringBuilder();
            ends.forEach((partition, end) -> append(lines, "end", partition.topic(), partition.partition(), end));
            write(lines);
        }
    }

    private static void groups(String bootstrap) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            Map<String, String> lines = new TreeMap<>();
            for (var group : admin.listGroups().all().get())
                admin.listConsumerGroupOffsets(group.groupId()).partitionsToOffsetAndMetadata().get().forEach((partition, at) ->
                    lines.put(group.groupId() + "\t" + partition.topic() + "\t" + partition.partition(), "\t" + at.offset()));
            lines.forEach((name, offset) -> System.out.println(name + offset));
        }
    }

    private synchronized void write(StringBuilder lines) throws Exception {
        ledger.write(lines.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static void append(StringBuilder lines, Object... fields) {
        for (int i = 0; i < fields.length; i++)
            lines.append(i == 0 ? "" : "\t").append(fields[i]);
        lines.append('\n');
    }

    private static long crc(String value) {
        CRC32 crc = new CRC32();
        crc.update(value.getBytes(StandardCharsets.UTF_8));
        return crc.getValue();
    }

    private KafkaProducer<String, String> producer(String codec, String transactionalId) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("acks", "all");
        config.put("linger.ms", "3");
        config.put("compression.type", codec);
        if (transactionalId != null)
            config.put("transactional.id", transactionalId);
        // Brokers that are killed come back before a transaction ends for its age.
        config.put("transaction.timeout.ms", "300000");
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    private KafkaConsumer<String, String> consumer(String group, String protocol, String isolation) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("isolation.level", isolation);
        config.put("group.protocol", protocol);
        config.put("enable.auto.commit", "false");
        config.put("max.poll.records", "60");
        config.put("auto.offset.reset", group != null && prefix.startsWith("a") ? "earliest" : "none");
        if (group == null)
            config.put("max.poll.records", "5000");
        else
            config.put("group.id", group);
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }
}
