import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.BeginTransactionRecord;
import org.apache.kafka.common.metadata.EndTransactionRecord;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.metadata.BrokerRegistration;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.metadata.PartitionRegistration;

/**
 * Kafka's image of a cluster, asked line by line: the folder of a metadata log on stdin, one JSON object on stdout. The
 * newest snapshot is loaded, then the log after it. What Kafka refuses is answered with "error" and the class.
 */
public class MetadataState {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // where Kafka's logging goes
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        out.println("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = JSON.writeValueAsString(describe(load(new File(line))));
            } catch (Throwable refusal) {
                answer = "error " + refusal.toString().replace('\n', ' ');
            }
            out.println(answer);
        }
    }

    private static MetadataImage load(File folder) throws Exception {
        File[] snapshots = folder.listFiles((where, name) -> name.matches("\\d{20}-\\d{10}\\.checkpoint"));
        File[] logs = folder.listFiles((where, name) -> name.matches("\\d{20}\\.log"));
        Arrays.sort(snapshots);
        Arrays.sort(logs);
        MetadataImage image = MetadataImage.EMPTY;
        long start = 0;
        if (snapshots.length > 0) {
            File newest = snapshots[snapshots.length - 1];
            image = replay(image, newest, 0);
            start = Long.parseLong(newest.getName().substring(0, 20));
        }
        for (File log : logs) {
            image = replay(image, log, start);
        }
        return image;
    }

    private static MetadataImage replay(MetadataImage image, File file, long start) throws Exception {
        MetadataRecordSerde serde = new MetadataRecordSerde();
        try (FileRecords records = FileRecords.open(file, false)) {
            for (RecordBatch batch : records.batches()) {
                if (batch.isControlBatch() || batch.lastOffset() < start) {
                    continue;
                }
                MetadataDelta delta = new MetadataDelta.Builder().setImage(image).build();
                for (Record record : batch) {
                    if (record.offset() >= start) {
                        ByteBufferAccessor value = new ByteBufferAccessor(record.value());
                        ApiMessage message = serde.read(value, record.valueSize()).message();
                        // Transactions are not for a delta; those of the logs here are all complete.
                        if (!(message instanceof BeginTransactionRecord || message instanceof EndTransactionRecord)) {
                            delta.replay(message);
                        }
                    }
                }
                image = delta.apply(new MetadataProvenance(batch.lastOffset(), 0, 0, true));
            }
        }
        return image;
    }

    private static Map<String, Object> describe(MetadataImage image) {
        Map<String, Object> answer = new TreeMap<>();
        Map<String, Object> topics = new TreeMap<>();
        image.topics().topicsById().forEach((id, topic) -> {
            Map<String, Object> partitions = new TreeMap<>();
            topic.partitions().forEach((number, partition) -> partitions.put(number.toString(), partition(partition)));
            topics.put(id.toString(), Map.of("name", topic.name(), "partitions", partitions));
        });
        answer.put("topics", topics);
        Map<String, Object> configs = new TreeMap<>();
        image.configs().resourceData().forEach((resource, data) ->
            configs.put(resource.type().id() + " " + resource.name(), new TreeMap<>(data.data())));
        answer.put("configs", configs);
        Map<String, Object> brokers = new TreeMap<>();
        image.cluster().brokers().forEach((id, broker) -> brokers.put(id.toString(), broker(broker)));
        answer.put("brokers", brokers);
        Map<String, Object> features = new TreeMap<>(image.features().finalizedVersions());
        image.features().metadataVersion().ifPresent(found -> features.put("metadata.version", found.featureLevel()));
        answer.put("features", features);
        answer.put("next_producer_id", image.producerIds().nextProducerId());
        return answer;
    }

    private static Map<String, Object> partition(PartitionRegistration found) {
        Map<String, Object> answer = new TreeMap<>();
        answer.put("replicas", found.replicas);
        answer.put("directories", texts(Arrays.asList(found.directories)));
        answer.put("isr", found.isr);
        answer.put("removing_replicas", found.removingReplicas);
        answer.put("adding_replicas", found.addingReplicas);
        answer.put("leader", found.leader);
        answer.put("leader_recovery_state", (int) found.leaderRecoveryState.value());
        answer.put("leader_epoch", found.leaderEpoch);
        answer.put("partition_epoch", found.partitionEpoch);
        answer.put("eligible_leader_replicas", found.elr);
        answer.put("last_known_elr", found.lastKnownElr);
        return answer;
    }

    private static Map<String, Object> broker(BrokerRegistration found) {
        Map<String, Object> answer = new TreeMap<>();
        answer.put("broker_epoch", found.epoch());
        answer.put("incarnation_id", found.incarnationId().toString());
        answer.put("rack", found.rack().orElse(null));
        answer.put("is_fenced", found.fenced());
        answer.put("in_controlled_shutdown", found.inControlledShutdown());
        // An image keeps them sorted.
        answer.put("directories", texts(found.directories()));
        return answer;
    }

    private static List<String> texts(List<Uuid> ids) {
        List<String> texts = new ArrayList<>();
        ids.forEach(id -> texts.add(id.toString()));
        return texts;
    }
}
