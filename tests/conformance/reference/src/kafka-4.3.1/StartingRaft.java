import java.net.InetSocketAddress;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

import kafka.raft.KafkaRaftManager;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer$;

import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.metadata.properties.MetaPropertiesEnsemble;
import org.apache.kafka.raft.BatchReader;
import org.apache.kafka.raft.Endpoints;
import org.apache.kafka.raft.FileQuorumStateStore;
import org.apache.kafka.raft.KafkaRaftClient;
import org.apache.kafka.raft.LeaderAndEpoch;
import org.apache.kafka.raft.RaftClient;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.snapshot.SnapshotReader;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What a sole controller does until it leads its metadata log and has read it, in its own order and with its own classes:
 * {@code KafkaRaftServer.initializeLogDirs}, then {@code KafkaRaftManager} as {@code SharedServer} starts it.
 */
final class StartingRaft {
    private static final Logger LOG = LoggerFactory.getLogger(StartingRaft.class);
    private static final long LIMIT_MS = 30_000;

    private StartingRaft() {
    }

    /** From NODE_ID, METADATA_DIR and DIRS, joined by commas: {@code starts}, or {@code exits REASON}. */
    static String run(String[] fields) {
        KafkaConfig config = Starting.config(fields[1], fields[2], fields[3]);
        KafkaRaftManager<ApiMessageAndVersion> manager = null;
        try (Metrics metrics = new Metrics()) {
            try {
                MetaPropertiesEnsemble ensemble = KafkaRaftServer$.MODULE$.initializeLogDirs(config, LOG, "")._1();
                manager = new KafkaRaftManager<>(ensemble.clusterId().get(), config,
                    ensemble.logDirProps().get(ensemble.metadataLogDir().get()).directoryId().get(), new MetadataRecordSerde(),
                    KafkaRaftServer$.MODULE$.MetadataPartition(), KafkaRaftServer$.MODULE$.MetadataTopicId(), Time.SYSTEM,
                    metrics, ignored -> { }, scala.Option.empty(), CompletableFuture.completedFuture(Map.of()), List.of(),
                    Endpoints.empty(), (message, cause) -> new IllegalStateException(message, cause));
                KafkaRaftClient<ApiMessageAndVersion> client = manager.client();
                client.initialize(Map.of(Integer.parseInt(fields[1]), InetSocketAddress.createUnresolved("127.0.0.1", 2)),
                    new FileQuorumStateStore(config.metadataLogDir().isEmpty() ? null
                        : new java.io.File(config.metadataLogDir(), "__cluster_metadata-0/quorum-state")), metrics, ignored -> { });
                AtomicBoolean leads = new AtomicBoolean();
                client.register(new Replaying(leads));
                long end = System.currentTimeMillis() + LIMIT_MS;
                while (!leads.get()) {
                    if (System.currentTimeMillis() > end)
                        throw new IllegalStateException("it does not lead");
                    client.poll();
                }
                return "\tstarts";
            } catch (Throwable refusal) {
                return "\texits\t" + (refusal.getClass().getSimpleName() + ": " + refusal.getMessage()).replaceAll("\\s", " ");
            } finally {
                if (manager != null)
                    manager.shutdown();
            }
        }
    }

    private record Replaying(AtomicBoolean leads) implements RaftClient.Listener<ApiMessageAndVersion> {
        @Override
        public void handleCommit(BatchReader<ApiMessageAndVersion> reader) {
            try (reader) {
                reader.forEachRemaining(batch -> { });
            }
        }

        @Override
        public void handleLoadSnapshot(SnapshotReader<ApiMessageAndVersion> reader) {
            try (reader) {
                reader.forEachRemaining(batch -> { });
            }
        }

        @Override
        public void handleLoadBootstrap(SnapshotReader<ApiMessageAndVersion> reader) {
            handleLoadSnapshot(reader);
        }

        @Override
        public void handleLeaderChange(LeaderAndEpoch leader) {
            leads.set(leader.leaderId().isPresent());
        }
    }
}
