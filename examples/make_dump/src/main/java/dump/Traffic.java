package dump;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.stream.Collectors;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.internals.RecordHeader;

/**
 * Creates the topics of the example dump on a running broker and fills them.
 *
 * <p>Usage: {@code dump.Traffic BOOTSTRAP OVERRIDES}. Into the file OVERRIDES goes a line
 * {@code topic.NAME.index.interval.bytes=BYTES} for every topic that has another interval than the broker.
 *
 * <p>Keys, values and batch sizes come from a fixed seed. Every batch is flushed on its own, so batch
 * boundaries do not depend on timing; timestamps and producer ids do.
 */
public final class Traffic {
    private static final int KIB = 1024;
    private static final long SECOND = 1000;
    private static final long HOUR = 3600 * SECOND;
    private static final String INTERVAL = "index.interval.bytes";
    private static final String[] WORDS = {
        "alder", "basalt", "cinder", "delta", "ember", "fjord", "garnet", "harbor", "indigo", "juniper", "kelp",
        "lichen", "meadow", "nectar", "opal", "pebble", "quartz", "river", "saffron", "tundra", "umber", "violet"};

    private final String bootstrap;
    private final Admin admin;
    private final Random random = new Random(20240229);
    private final long start = System.currentTimeMillis();

    private Traffic(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    public static void main(String[] args) throws Exception {
        Traffic traffic = new Traffic(args[0]);
        traffic.createTopics();
        traffic.writeOverrides(Path.of(args[1]));
        traffic.orders();
        traffic.pageViews();
        traffic.plain("sensors.temperature_c", 2, 420, "snappy");
        traffic.plain("app-logs", 2, 300, "lz4");
        traffic.plain("audit.trail", 1, 420, "zstd");
        traffic.plain("trace-spans.fine", 1, 300, "none");
        traffic.plain("gateway.access-log", 1, 400, "gzip");
        traffic.mixedCodecs();
        traffic.importedHistory();
        traffic.customerProfiles();
        traffic.inventoryLevels();
        traffic.shipments();
        traffic.consumeWithGroup("orders.eu-west", "reporting");
        traffic.payments();
        traffic.admin.close();
        // No orderly exit: it would end the open transaction of payments.
        Runtime.getRuntime().halt(0);
    }

    private void createTopics() throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        topics.add(topic("orders.eu-west", 3, 48));
        topics.add(topic("page-views", 2, 1024, "segment.ms", Long.toString(HOUR)));
        topics.add(topic("sensors.temperature_c", 2, 48));
        topics.add(topic("app-logs", 2, 64));
        topics.add(topic("audit.trail", 1, 64));
        topics.add(topic("trace-spans.fine", 1, 64, INTERVAL, "1024"));
        topics.add(topic("gateway.access-log", 1, 64, "message.timestamp.type", "LogAppendTime"));
        topics.add(topic("mixed.codecs-feed", 1, 64));
        topics.add(topic("imported-history", 2, 96,
            "message.timestamp.after.max.ms", Long.toString(Long.MAX_VALUE), "segment.ms", Long.toString(Long.MAX_VALUE)));
        topics.add(topic("customer-profiles", 1, 64,
            "cleanup.policy", "compact", "min.cleanable.dirty.ratio", "0.01"));
        topics.add(topic("inventory.levels", 1, 64,
            "cleanup.policy", "compact", "min.cleanable.dirty.ratio", "0.01"));
        topics.add(topic("shipments.tracking", 1, 64));
        topics.add(topic("payments", 2, 48));
        topics.add(topic("reserved-for.later", 2, 64));
        admin.createTopics(topics).all().get();
    }

    private static NewTopic topic(String name, int partitions, int segmentKib, String... config) {
        Map<String, String> map = new TreeMap<>();
        // Kafka's own name for a segment size below 1 MiB, made for tests.
        map.put("internal.segment.bytes", Integer.toString(segmentKib * KIB));
        for (int i = 0; i < config.length; i += 2)
            map.put(config[i], config[i + 1]);
        return new NewTopic(name, partitions, (short) 1).configs(map);
    }

    private void writeOverrides(Path path) throws Exception {
        String brokerWide = admin.describeConfigs(List.of(new ConfigResource(ConfigResource.Type.BROKER, "1")))
            .all().get().values().iterator().next().get("log." + INTERVAL).value();
        Map<String, String> overrides = new TreeMap<>();
        List<ConfigResource> topics = admin.listTopics().names().get().stream()
            .map(name -> new ConfigResource(ConfigResource.Type.TOPIC, name)).collect(Collectors.toList());
        admin.describeConfigs(topics).all().get().forEach((resource, config) -> {
            String value = config.get(INTERVAL).value();
            if (!value.equals(brokerWide))
                overrides.put("topic." + resource.name() + "." + INTERVAL, value);
        });
        StringBuilder text = new StringBuilder("log." + INTERVAL + "=" + brokerWide + "\n");
        overrides.forEach((key, value) -> text.append(key).append("=").append(value).append("\n"));
        Files.writeString(path, text);
    }

    // Topics

    /** Uncompressed, headers, null keys and values, slightly unordered times; each batch of one to fifteen records. */
    private void orders() {
        try (KafkaProducer<byte[], byte[]> producer = producer("none", true, null)) {
            for (int i = 0; i < 540; i++) {
                int records = 1 + random.nextInt(15);
                for (int j = 0; j < records; j++) {
                    long time = start - 6 * HOUR + i * 30 * SECOND + random.nextInt(90_000) - 45_000;
                    byte[] key = random.nextInt(8) == 0 ? null : bytes("order-" + random.nextInt(5000));
                    byte[] value = random.nextInt(10) == 0 ? null : bytes(words(4 + random.nextInt(16)));
                    ProducerRecord<byte[], byte[]> record =
                        new ProducerRecord<>("orders.eu-west", i % 3, time, key, value);
                    if (random.nextInt(3) == 0)
                        record.headers().add(new RecordHeader("trace-id", bytes(Long.toHexString(random.nextLong()))));
                    if (random.nextInt(9) == 0)
                        record.headers().add(new RecordHeader("flag", null));
                    producer.send(record);
                }
                producer.flush();
            }
        }
    }

    /** Gzip; segments roll after an hour of record time, long before they are full. */
    private void pageViews() {
        try (KafkaProducer<byte[], byte[]> producer = producer("gzip", true, null)) {
            for (int i = 0; i < 480; i++) {
                int records = 12 + random.nextInt(30);
                for (int j = 0; j < records; j++)
                    producer.send(new ProducerRecord<>("page-views", i % 2, start - 5 * HOUR + i * 36 * SECOND + j,
                        bytes("visitor-" + random.nextInt(300)), bytes("/" + words(2).replace(' ', '/'))));
                producer.flush();
            }
        }
    }

    /** Rising times, one codec, partitions in turn. */
    private void plain(String topic, int partitions, int batches, String codec) {
        try (KafkaProducer<byte[], byte[]> producer = producer(codec, true, null)) {
            for (int i = 0; i < batches; i++)
                batch(producer, topic, i % partitions, start - 4 * HOUR + i * 20 * SECOND, 4 + random.nextInt(24));
        }
    }

    /** Five producers with five codecs write the same partition. */
    private void mixedCodecs() {
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            producers.add(producer(codec, true, null));
        for (int i = 0; i < 260; i++)
            batch(producers.get(random.nextInt(5)), "mixed.codecs-feed", 0, start - 3 * HOUR + i * 30 * SECOND,
                1 + random.nextInt(30));
        producers.forEach(KafkaProducer::close);
    }

    /**
     * Wild times. Partition 0: any moment since 1970, now and then at the edges of the range. Partition 1: a saw
     * blade of days that go back. No producer ids here: the broker forgets producers by their records' times.
     */
    private void importedHistory() {
        try (KafkaProducer<byte[], byte[]> producer = producer("none", false, null)) {
            for (int i = 0; i < 240; i++) {
                int wild = 1 + random.nextInt(14);
                for (int j = 0; j < wild; j++) {
                    long time = (long) (random.nextDouble() * random.nextDouble() * start);
                    if (i == 7)
                        time = 0;
                    if (i == 200 && j == 0)
                        time = Long.MAX_VALUE - 1;
                    if (i == 210 && j == 0)
                        time = Long.MAX_VALUE;
                    producer.send(new ProducerRecord<>("imported-history", 0, time, null, bytes(words(14))));
                }
                producer.flush();
                long day = start - (400 - i % 60 - i / 60 * 45) * 24 * HOUR;
                int sawn = 1 + random.nextInt(14);
                for (int j = 0; j < sawn; j++)
                    producer.send(new ProducerRecord<>("imported-history", 1, day - j * HOUR,
                        bytes("row-" + i), bytes(words(14))));
                producer.flush();
            }
        }
    }

    /** Compacted, with tombstones; few keys are written late, so cleaned batches keep single records. */
    private void customerProfiles() {
        try (KafkaProducer<byte[], byte[]> producer = producer("none", false, null)) {
            for (int i = 0; i < 420; i++) {
                int records = 1 + random.nextInt(12);
                for (int j = 0; j < records; j++) {
                    int customer = (int) (Math.pow(random.nextDouble(), 2) * 2200);
                    byte[] value = random.nextInt(12) == 0 ? null : bytes(words(10 + random.nextInt(12)));
                    producer.send(new ProducerRecord<>("customer-profiles", 0, start - 2 * HOUR + i * 10 * SECOND + j,
                        bytes("customer-" + customer), value));
                }
                producer.flush();
            }
        }
    }

    /**
     * Compacted and compressed, idempotent producers. Five of them end with a batch whose keys are all written again:
     * the cleaner keeps those batches, empty. Otherwise the last record of a batch is never written again, and all
     * records of a batch share one time: live producer snapshots remember batches and times that were compacted
     * away, which no rebuild can find.
     */
    private void inventoryLevels() {
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (int i = 0; i < 6; i++)
            producers.add(producer(i % 2 == 0 ? "lz4" : "zstd", true, null));
        for (int i = 0; i < 600; i++) {
            int who = i < 300 ? Math.min(4, i / 60 + random.nextInt(2)) : 5;
            int records = 3 + random.nextInt(20);
            for (int j = 0; j < records; j++)
                inventory(producers.get(who), i * 5 * SECOND, "item-" + random.nextInt(i < 300 ? 400 : 5000));
            inventory(producers.get(who), i * 5 * SECOND, "count-" + i);
            producers.get(who).flush();
        }
        for (int who = 0; who < 5; who++) {
            for (int j = 0; j < 8; j++)
                inventory(producers.get(who), 3000 * SECOND, "item-" + random.nextInt(400));
            producers.get(who).flush();
        }
        for (int item = 0; item < 400; item++) {
            inventory(producers.get(5), 3001 * SECOND + item / 10, "item-" + item);
            if (item % 10 == 9)
                producers.get(5).flush();
        }
        for (int i = 0; i < 150; i++) {
            for (int j = 0; j < 20; j++)
                inventory(producers.get(5), HOUR + i, "bin-" + random.nextInt(100_000));
            producers.get(5).flush();
        }
        producers.forEach(KafkaProducer::close);
    }

    private void inventory(KafkaProducer<byte[], byte[]> producer, long time, String key) {
        producer.send(
            new ProducerRecord<>("inventory.levels", 0, start - HOUR + time, bytes(key), bytes(words(8))));
    }

    /** A log start inside the third segment: the first two go, the third keeps records below the start. */
    private void shipments() throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer("none", true, null)) {
            for (int i = 0; i < 260; i++)
                batch(producer, "shipments.tracking", 0, start - 2 * HOUR + i * 30 * SECOND, 1 + random.nextInt(20));
        }
        TopicPartition partition = new TopicPartition("shipments.tracking", 0);
        admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(1500))).all().get();
    }

    /** Offset commits of a consumer group. */
    private void consumeWithGroup(String topic, String group) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("max.poll.records", "200");
        config.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        config.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config)) {
            consumer.subscribe(List.of(topic));
            int seen = 0;
            while (seen < 4000) {
                seen += consumer.poll(Duration.ofSeconds(1)).count();
                consumer.commitSync();
            }
        }
    }

    /**
     * Transactions of three producers at a time, a third of them aborted, some of them over several segments, with
     * plain batches between them. One transaction stays open in partition 1.
     */
    private void payments() {
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        List<String> codecs = List.of("none", "lz4", "none", "snappy");
        for (int i = 0; i < 4; i++) {
            producers.add(producer(codecs.get(i), true, "payments-" + i));
            producers.get(i).initTransactions();
        }
        int[] left = new int[3];
        try (KafkaProducer<byte[], byte[]> plain = producer("none", true, null)) {
            for (int i = 0; i < 420; i++) {
                int who = random.nextInt(3);
                if (left[who] == 0) {
                    producers.get(who).beginTransaction();
                    left[who] = random.nextInt(6) == 0 ? 60 : 1 + random.nextInt(12);
                }
                batch(producers.get(who), "payments", random.nextInt(2), System.currentTimeMillis(),
                    1 + random.nextInt(14));
                if (--left[who] == 0)
                    end(producers.get(who));
                if (i % 11 == 0)
                    batch(plain, "payments", i % 2, System.currentTimeMillis(), 3);
            }
            for (int who = 0; who < 3; who++)
                if (left[who] > 0)
                    end(producers.get(who));
            producers.get(3).beginTransaction();
            batch(producers.get(3), "payments", 1, System.currentTimeMillis(), 5);
            batch(plain, "payments", 1, System.currentTimeMillis(), 3);
        }
    }

    private void end(KafkaProducer<byte[], byte[]> producer) {
        if (random.nextInt(3) == 0)
            producer.abortTransaction();
        else
            producer.commitTransaction();
    }

    // Helpers

    private KafkaProducer<byte[], byte[]> producer(String codec, boolean idempotent, String transactionalId) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("compression.type", codec);
        config.put("enable.idempotence", Boolean.toString(idempotent));
        config.put("acks", "all");
        config.put("linger.ms", "60000");
        config.put("batch.size", Integer.toString(256 * KIB));
        config.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        config.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        if (transactionalId != null) {
            config.put("transactional.id", transactionalId);
            config.put("transaction.timeout.ms", Long.toString(HOUR / 4));
        }
        return new KafkaProducer<>(config);
    }

    private void batch(KafkaProducer<byte[], byte[]> producer, String topic, int partition, long time, int records) {
        for (int i = 0; i < records; i++)
            producer.send(new ProducerRecord<>(topic, partition, time + i,
                bytes("key-" + random.nextInt(100_000)), bytes(words(6 + random.nextInt(14)))));
        producer.flush();
    }

    private String words(int count) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < count; i++)
            text.append(i == 0 ? "" : " ").append(WORDS[random.nextInt(WORDS.length)]);
        return text.toString();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
