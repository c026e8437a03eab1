import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;

/** Topics, and where their replicas are. */
final class Topics {
    private static final long WAIT_MS = 60_000;

    private final Admin admin;

    Topics(String bootstrap) {
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    List<String> create(String name, int partitions, List<Integer> replicas, Options settings) throws Exception {
        Map<Integer, List<Integer>> assignment = new HashMap<>();
        for (int partition = 0; partition < partitions; partition++)
            assignment.put(partition, rotated(replicas, partition));
        admin.createTopics(List.of(new NewTopic(name, assignment).configs(settings.all()))).all().get();
        return List.of();
    }

    /** Gives each partition these replicas, with leaders where they are. */
    List<String> reassign(List<Integer> replicas, List<String> names) throws Exception {
        Map<TopicPartition, Optional<NewPartitionReassignment>> moves = new HashMap<>();
        for (TopicDescription topic : admin.describeTopics(names).allTopicNames().get().values())
            topic.partitions().forEach(partition -> moves.put(
                new TopicPartition(topic.name(), partition.partition()),
                Optional.of(new NewPartitionReassignment(replicas))));
        admin.alterPartitionReassignments(moves).all().get();
        return List.of();
    }

    /** Moves the replicas of a broker into one of its directories. */
    List<String> move(int broker, String directory, List<String> names) throws Exception {
        Map<TopicPartitionReplica, String> moves = new HashMap<>();
        for (TopicDescription topic : admin.describeTopics(names).allTopicNames().get().values())
            topic.partitions().stream()
                .filter(partition -> partition.replicas().stream().anyMatch(replica -> replica.id() == broker))
                .forEach(partition -> moves.put(new TopicPartitionReplica(topic.name(), partition.partition(), broker), directory));
        admin.alterReplicaLogDirs(moves).all().get();
        return List.of();
    }

    /** Waits until each partition has so many replicas in sync; 0 is all that it has. */
    List<String> awaitInSync(int replicas, List<String> names) throws Exception {
        long end = System.currentTimeMillis() + WAIT_MS;
        while (!inSync(replicas, names)) {
            if (System.currentTimeMillis() > end)
                throw new IllegalStateException(replicas + " replicas are not in sync within " + WAIT_MS + " ms");
            Thread.sleep(100);
        }
        return List.of();
    }

    List<String> deleteRecords(String name, int partition, long before) throws Exception {
        admin.deleteRecords(Map.of(new TopicPartition(name, partition), RecordsToDelete.beforeOffset(before))).all().get();
        return List.of();
    }

    /**
     * What leaders know of producers. A line for each: the partition's directory, producer, epoch, last sequence, last
     * timestamp, epoch of the coordinator, start of its transaction; for a partition without any, the directory alone.
     */
    List<String> producers(List<String> names) throws Exception {
        List<TopicPartition> partitions = new ArrayList<>();
        for (TopicDescription topic : admin.describeTopics(names).allTopicNames().get().values())
            topic.partitions().forEach(one -> partitions.add(new TopicPartition(topic.name(), one.partition())));
        List<String> lines = new ArrayList<>();
        admin.describeProducers(partitions).all().get().forEach((partition, known) -> {
            if (known.activeProducers().isEmpty())
                lines.add(partition.toString());
            known.activeProducers().forEach(one -> lines.add(partition + " " + one.producerId() + " " + one.producerEpoch()
                + " " + one.lastSequence() + " " + one.lastTimestamp()
                + " " + (one.coordinatorEpoch().isPresent() ? one.coordinatorEpoch().getAsInt() : "-")
                + " " + (one.currentTransactionStartOffset().isPresent() ? one.currentTransactionStartOffset().getAsLong() : "-")));
        });
        return lines;
    }

    private boolean inSync(int replicas, List<String> names) throws Exception {
        return admin.listPartitionReassignments().reassignments().get().isEmpty()
            && admin.describeTopics(names).allTopicNames().get().values().stream()
                .flatMap(topic -> topic.partitions().stream())
                .allMatch(partition -> partition.leader() != null
                    && partition.isr().size() == (replicas == 0 ? partition.replicas().size() : replicas));
    }

    private static List<Integer> rotated(List<Integer> replicas, int by) {
        List<Integer> out = new ArrayList<>(replicas);
        Collections.rotate(out, by);
        return out;
    }
}
