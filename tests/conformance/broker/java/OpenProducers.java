import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Producers that stay open from request to request, whatever happens to the broker meanwhile. */
final class OpenProducers {
    private final String bootstrap;
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private int sent = 0;

    OpenProducers(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    List<String> open(String name, boolean transactional) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("enable.idempotence", "true");
        config.put("acks", "all");
        config.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        config.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        if (transactional)
            config.put("transactional.id", name);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config);
        if (transactional)
            producer.initTransactions();
        producers.put(name, producer);
        return List.of();
    }

    List<String> begin(String name) {
        producers.get(name).beginTransaction();
        return List.of();
    }

    /** A record is a batch, since each is waited for. */
    List<String> send(String name, String topic, int batches) throws Exception {
        for (int batch = 0; batch < batches; batch++) {
            byte[] value = (name + " " + sent++).getBytes(StandardCharsets.UTF_8);
            producers.get(name).send(new ProducerRecord<>(topic, 0, null, value)).get();
        }
        return List.of();
    }

    List<String> commit(String name) {
        producers.get(name).commitTransaction();
        return List.of();
    }

    List<String> abort(String name) {
        producers.get(name).abortTransaction();
        return List.of();
    }
}
