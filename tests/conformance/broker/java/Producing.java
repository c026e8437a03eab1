import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.Random;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeader;

/**
 * Traffic. Everything but the clock comes from a fixed seed. A batch is flushed before the next one of its
 * partition begins, so what is in a batch does not depend on timing.
 */
final class Producing {
    private static final long DAY_MS = 86_400_000;
    private static final int MAX_BATCH_BYTES = 1_000_000;

    private final String bootstrap;
    private final Random random = new Random(20240229);
    private final long started = System.currentTimeMillis();
    /** Referred to for as long as this runs: an open transaction stays open. */
    private final List<KafkaProducer<byte[], byte[]>> open = new ArrayList<>();

    Producing(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    List<String> plain(Options options) throws Exception {
        int partitions = options.number("partitions");
        try (KafkaProducer<byte[], byte[]> producer = producer(options, null)) {
            for (int batch = 0; batch < options.number("batches"); batch++) {
                for (int partition = 0; partition < partitions; partition++)
                    send(producer, options, partition, batch);
                producer.flush();
            }
        }
        return List.of();
    }

    /**
     * Three producers, a batch now from the one, now from another, each in a transaction of a few batches or of many. The
     * share {@code aborted_percent} is aborted. With {@code left_open} a fourth one never ends its transaction.
     */
    List<String> transactions(Options options) throws Exception {
        int partitions = options.number("partitions");
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            producers.add(producer(options, options.text("topic") + "-" + i));
            producers.get(i).initTransactions();
        }
        int[] left = new int[3];
        for (int batch = 0; batch < options.number("batches"); batch++) {
            int who = random.nextInt(3);
            if (left[who] == 0) {
                producers.get(who).beginTransaction();
                left[who] = random.nextInt(5) == 0 ? options.number("batches") / 6 : 1 + random.nextInt(9);
            }
            send(producers.get(who), options, batch % partitions, batch);
            producers.get(who).flush();
            if (--left[who] == 0)
                end(producers.get(who), options);
        }
        for (int who = 0; who < 3; who++)
            if (left[who] > 0)
                end(producers.get(who), options);
        if (options.flag("left_open")) {
            producers.get(3).beginTransaction();
            send(producers.get(3), options, 0, options.number("batches"));
            producers.get(3).flush();
            open.add(producers.get(3));
        }
        return List.of();
    }

    private void end(KafkaProducer<byte[], byte[]> producer, Options options) {
        if (random.nextInt(100) < options.number("aborted_percent"))
            producer.abortTransaction();
        else
            producer.commitTransaction();
    }

    private void send(KafkaProducer<byte[], byte[]> producer, Options options, int partition, int batch) {
        int records = between(options, "records");
        for (int i = 0; i < records; i++) {
            byte[] key = options.number("keys") == 0 ? null
                : ("key-" + random.nextInt(options.number("keys"))).getBytes(StandardCharsets.UTF_8);
            byte[] value = random.nextInt(100) < options.number("null_values_percent") ? null
                : value(between(options, "value_bytes"));
            ProducerRecord<byte[], byte[]> record =
                new ProducerRecord<>(options.text("topic"), partition, time(options, batch, i), key, value);
            if (options.flag("headers")) {
                record.headers().add(new RecordHeader("trace-id", value(random.nextInt(12))));
                record.headers().add(new RecordHeader("", null));
            }
            producer.send(record);
        }
    }

    private long time(Options options, int batch, int record) {
        long step = options.bigNumber("step_ms");
        switch (options.text("times")) {
            case "rising":
                return started - DAY_MS + batch * step + record;
            case "unordered":
                return started - DAY_MS + batch * step + random.nextInt(90_000) - 45_000;
            case "sawtooth":
                return started - (400 - batch % 60 - batch / 60 * 45) * DAY_MS - record * step;
            case "wild":
                if (random.nextInt(500) == 0)
                    return Long.MAX_VALUE - random.nextInt(2);
                return random.nextInt(100) == 0 ? 0 : (long) (random.nextDouble() * random.nextDouble() * started);
            default:
                throw new IllegalArgumentException("no such times: " + options.text("times"));
        }
    }

    /** Half noise, half one letter: codecs find something, but not everything. */
    private byte[] value(int size) {
        byte[] value = new byte[size];
        random.nextBytes(value);
        Arrays.fill(value, 0, size / 2, (byte) 'k');
        return value;
    }

    private int between(Options options, String key) {
        String[] edges = options.text(key).split("-");
        int low = Integer.parseInt(edges[0]);
        return low + random.nextInt(Integer.parseInt(edges[1]) - low + 1);
    }

    private KafkaProducer<byte[], byte[]> producer(Options options, String transactionalId) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("compression.type", options.text("codec"));
        config.put("enable.idempotence", options.text("idempotent"));
        config.put("acks", "all");
        config.put("linger.ms", "60000");
        config.put("batch.size", Integer.toString(MAX_BATCH_BYTES));
        config.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        config.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        if (transactionalId != null) {
            config.put("transactional.id", transactionalId);
            config.put("transaction.timeout.ms", "900000");
        }
        return new KafkaProducer<>(config);
    }
}
