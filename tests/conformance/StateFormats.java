import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ScheduledFuture;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.TransactionIndex;
import org.apache.kafka.storage.internals.log.TxnIndexSearchResult;

/**
 * Kafka's readers and writers of producer snapshots, transaction indexes and leader epochs, asked line by line: words
 * apart by blanks on stdin, one line of words on stdout. What Kafka refuses is answered with "error" and the class.
 */
public class StateFormats {
    private static TransactionIndex index;
    private static LeaderEpochFileCache epochs;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // where Kafka's logging goes
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        out.println("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            String answer;
            try {
                answer = answer(words);
            } catch (Exception refusal) {
                answer = "error " + refusal.getClass().getSimpleName();
            }
            out.println(answer);
        }
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "rewrite-snapshot":
                return rewriteSnapshot(new File(words[1]), new File(words[2]));
            case "map-order":
                return mapOrder(Path.of(words[1]), Path.of(words[2]));
            case "txn-open":
                index = new TransactionIndex(number(words[2]), new File(words[1]));
                return "ok";
            case "txn-append":
                index.append(new AbortedTxn(number(words[1]), number(words[2]), number(words[3]), number(words[4])));
                return "ok";
            case "txn-collect":
                TxnIndexSearchResult found = index.collectAbortedTxns(number(words[1]), number(words[2]));
                return found.isComplete() + " " + text(found.abortedTransactions());
            case "txn-all":
                return "all " + text(index.allAbortedTxns());
            case "txn-truncate":
                index.truncateTo(number(words[1]));
                return "ok";
            case "txn-reset":
                index.reset();
                return "ok";
            case "txn-check":
                index.sanityCheck();
                return "ok";
            case "txn-empty":
                return String.valueOf(index.isEmpty());
            case "txn-close":
                index.close();
                return "ok";
            case "epochs-open":
                epochs = new LeaderEpochFileCache(
                    new TopicPartition("topic", 0),
                    new LeaderEpochCheckpointFile(new File(words[1]), new LogDirFailureChannel(1)),
                    new Now());
                return entries();
            case "epochs-assign":
                epochs.assign((int) number(words[1]), number(words[2]));
                return entries();
            case "epochs-from-start":
                epochs.truncateFromStartAsyncFlush(number(words[1]));
                return entries();
            case "epochs-from-end":
                epochs.truncateFromEndAsyncFlush(number(words[1]));
                return entries();
            case "epochs-end-offset":
                Map.Entry<Integer, Long> end = epochs.endOffsetFor((int) number(words[1]), number(words[2]));
                return end.getKey() + " " + end.getValue();
            case "epochs-for-offset":
                return String.valueOf(epochs.epochForOffset(number(words[1])).orElse(-1));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** Reads a snapshot, puts its producers into a map as a broker does, and writes another from that. */
    private static String rewriteSnapshot(File from, File to) throws Exception {
        Map<Long, ProducerStateEntry> producers = new HashMap<>();
        for (ProducerStateEntry entry : ProducerStateManager.readSnapshot(from))
            producers.put(entry.producerId(), entry);
        ProducerStateManager.writeSnapshot(to, producers, false);
        return "ok " + producers.size();
    }

    /** Iterates over a map that was filled with the big-endian longs of a file; writes them in that order. */
    private static String mapOrder(Path from, Path to) throws Exception {
        ByteBuffer in = ByteBuffer.wrap(Files.readAllBytes(from));
        Map<Long, Boolean> map = new HashMap<>();
        while (in.hasRemaining())
            map.put(in.getLong(), true);
        ByteBuffer out = ByteBuffer.allocate(in.capacity());
        map.keySet().forEach(out::putLong);
        Files.write(to, out.array());
        return "ok " + map.size();
    }

    private static String text(List<AbortedTxn> entries) {
        return entries.stream()
            .map(e -> e.producerId() + "," + e.firstOffset() + "," + e.lastOffset() + "," + e.lastStableOffset())
            .collect(Collectors.joining(";"));
    }

    private static String entries() {
        List<String> texts = new ArrayList<>();
        for (EpochEntry entry : epochs.epochEntries())
            texts.add(entry.epoch() + "," + entry.startOffset());
        return "epochs " + String.join(";", texts);
    }

    private static long number(String word) {
        return Long.parseLong(word);
    }

    /** Does at once what is to be done in the background. */
    private static class Now implements Scheduler {
        @Override
        public void startup() {
        }

        @Override
        public void shutdown() {
        }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            task.run();
            return null;
        }

        @Override
        public void resizeThreadPool(int newSize) {
        }
    }
}
