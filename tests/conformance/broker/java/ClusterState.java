import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Gives a broker all kinds of state, and prints what it then says of it as one JSON object.
 *
 * <p>Usage: {@code ClusterState BOOTSTRAP [answer]}. Members of groups and an open transaction are left as they are. With
 * {@code answer} it only prints.
 */
public final class ClusterState {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String SECRET = "hunter2-hunter2";

    private final String bootstrap;
    private final Admin admin;

    private ClusterState(String bootstrap) {
        this.bootstrap = bootstrap;
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    public static void main(String[] args) throws Exception {
        ClusterState state = new ClusterState(args[0]);
        if (args.length == 1) {
            state.topics();
            state.configs();
            state.groups();
            state.transactions();
        }
        System.out.println(JSON.writeValueAsString(state.answer()));
        System.out.flush();
        // No orderly exit: members would leave, and the open transaction would end.
        Runtime.getRuntime().halt(0);
    }

    private void topics() throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (String name : List.of("orders", "gone", "again", "payments")) {
            topics.add(new NewTopic(name, 3, (short) 1).configs(Map.of("retention.ms", "86400000")));
        }
        admin.createTopics(topics).all().get();
        admin.deleteTopics(List.of("gone", "again")).all().get();
        admin.createTopics(List.of(new NewTopic("again", 1, (short) 1))).all().get();
        admin.createPartitions(Map.of("orders", NewPartitions.increaseTo(5))).all().get();
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            for (int number = 0; number < 50; number++) {
                producer.send(new ProducerRecord<>("orders", number % 5, null, "value " + number)).get();
            }
        }
    }

    private void configs() throws Exception {
        ConfigResource orders = new ConfigResource(ConfigResource.Type.TOPIC, "orders");
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        ConfigResource everyBroker = new ConfigResource(ConfigResource.Type.BROKER, "");
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, "modern");
        admin.incrementalAlterConfigs(Map.of(
            orders, List.of(set("segment.ms", "100000"), set("cleanup.policy", "compact,delete"), delete("retention.ms")),
            broker, List.of(set("log.cleaner.threads", "2"),
                set("listener.name.external.ssl.keystore.password", SECRET)),
            everyBroker, List.of(set("plugin.password", SECRET)),
            group, List.of(set("consumer.session.timeout.ms", "50000")))).all().get();
        byte[] password = SECRET.getBytes();
        admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("alice",
            new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), password))).all().get();
    }

    private void groups() throws Exception {
        consume("classic", Map.of("group.protocol", "classic", "group.instance.id", "static-1"));
        consume("modern", Map.of("group.protocol", "consumer"));
        Consumer<String, String> left = consume("left", Map.of("group.protocol", "classic"));
        left.close();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        offsets.put(new TopicPartition("orders", 0), new OffsetAndMetadata(3, Optional.of(0), "by hand"));
        offsets.put(new TopicPartition("orders", 1), new OffsetAndMetadata(4));
        admin.alterConsumerGroupOffsets("simple", offsets).all().get();
        admin.alterConsumerGroupOffsets("deleted", offsets).all().get();
        admin.deleteConsumerGroups(List.of("deleted")).all().get();
        TopicPartition one = new TopicPartition("orders", 1);
        admin.deleteConsumerGroupOffsets("simple", java.util.Set.of(one)).all().get();
        KafkaShareConsumer<String, String> share = new KafkaShareConsumer<>(settings(Map.of("group.id", "shared")));
        share.subscribe(List.of("orders"));
        for (int turn = 0; turn < 20; turn++) {
            share.poll(Duration.ofMillis(200));
        }
    }

    private Consumer<String, String> consume(String group, Map<String, Object> more) {
        Map<String, Object> own = new HashMap<>(more);
        own.put("group.id", group);
        own.put("auto.offset.reset", "earliest");
        own.put("enable.auto.commit", "false");
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings(own));
        consumer.subscribe(List.of("orders"));
        int found = 0;
        long end = System.currentTimeMillis() + 120_000;
        while (found < 50 && System.currentTimeMillis() < end) {
            found += consumer.poll(Duration.ofMillis(200)).count();
        }
        consumer.commitSync();
        return consumer;
    }

    @SuppressWarnings("removal") // a group that has no members has no other metadata
    private void transactions() throws Exception {
        TopicPartition partition = new TopicPartition("orders", 2);
        for (String id : List.of("committed", "aborted", "open")) {
            KafkaProducer<String, String> producer = producer(Map.of("transactional.id", id));
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("payments", 0, null, id)).get();
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(7, "in " + id)),
                new ConsumerGroupMetadata("of-" + id));
            if (id.equals("committed")) {
                producer.commitTransaction();
            } else if (id.equals("aborted")) {
                producer.abortTransaction();
            } else {
                producer.flush();
            }
        }
    }

    private Map<String, Object> answer() throws Exception {
        Map<String, Object> answer = new LinkedHashMap<>();
        Map<String, Object> topics = new TreeMap<>();
        admin.describeTopics(admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get()).allTopicNames().get().forEach((name, found) ->
            topics.put(name, Map.of("id", found.topicId().toString(), "partitions", found.partitions().size())));
        answer.put("topics", topics);
        ConfigResource orders = new ConfigResource(ConfigResource.Type.TOPIC, "orders");
        Map<String, Object> configs = new TreeMap<>();
        for (ConfigEntry entry : admin.describeConfigs(List.of(orders)).all().get().get(orders).entries()) {
            if (entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG) {
                configs.put(entry.name(), entry.value());
            }
        }
        answer.put("configs", configs);
        Map<String, Object> groups = new TreeMap<>();
        admin.listGroups().all().get().forEach(found ->
            groups.put(found.groupId(), found.type().map(type -> type.toString().toLowerCase()).orElse("")));
        answer.put("groups", groups);
        answer.put("offsets", offsets(groups));
        Map<String, Object> transactions = new TreeMap<>();
        List<String> ids = new ArrayList<>();
        admin.listTransactions().all().get().forEach(found -> ids.add(found.transactionalId()));
        for (Map.Entry<String, TransactionDescription> one : admin.describeTransactions(ids).all().get().entrySet()) {
            TransactionDescription found = one.getValue();
            List<String> partitions = new ArrayList<>();
            found.topicPartitions().forEach(partition -> partitions.add(partition.toString()));
            partitions.sort(null);
            transactions.put(one.getKey(), Map.of("state", found.state().toString(), "producer_id", found.producerId(),
                "producer_epoch", found.producerEpoch(), "timeout_ms", found.transactionTimeoutMs(),
                "partitions", partitions));
        }
        answer.put("transactions", transactions);
        answer.put("secret", SECRET);
        return answer;
    }

    private Map<String, Object> offsets(Map<String, Object> groups) throws Exception {
        Map<String, Object> offsets = new TreeMap<>();
        for (Map.Entry<String, Object> group : groups.entrySet()) {
            if (group.getValue().equals("share")) {
                continue;
            }
            admin.listConsumerGroupOffsets(group.getKey()).partitionsToOffsetAndMetadata().get().forEach((where, found) -> {
                if (found != null) {
                    Map<String, Object> one = new TreeMap<>();
                    one.put("offset", found.offset());
                    one.put("leader_epoch", found.leaderEpoch().orElse(null));
                    one.put("metadata", found.metadata());
                    offsets.put(group.getKey() + " " + where, one);
                }
            });
        }
        return offsets;
    }

    private KafkaProducer<String, String> producer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private Map<String, Object> settings(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        return settings;
    }

    private static AlterConfigOp set(String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
    }

    private static AlterConfigOp delete(String name) {
        return new AlterConfigOp(new ConfigEntry(name, null), AlterConfigOp.OpType.DELETE);
    }
}
