import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * Answers, with Kafka's own classes, what a broker's recovery of one segment leaves on disk and what its lookups find.
 *
 * A request is one line of tab-separated fields on standard input, a reply one such line on standard output. On a
 * segment, without state ({@link Recovery}, {@link LookupBench}, {@link RecordsBench}):
 *
 * <pre>
 * recover DIR BASE_OFFSET INDEX_INTERVAL_BYTES SEGMENT_INDEX_BYTES -> ok TRUNCATED_BYTES NEXT_OFFSET
 * bench   DIR BASE_OFFSET INDEX_INTERVAL_BYTES SECONDS             -> ok MEDIAN_SECONDS BYTES ROUNDS
 * bench-lookup WHAT DIR BASE_OFFSET SECONDS                        -> ok QUERIES_PER_SECOND QUERIES_PER_ROUND ROUNDS
 * bench-records FILE SECONDS                               -> ok BEST_SECONDS RECORDS ROUNDS
 * quit
 * </pre>
 *
 * On one partition that is held open ({@link OpenPartition} says what the answers are). TARGET... are any number of
 * fields, and each has a field of its own in the reply: numbers with blanks between them, {@code -} for nothing, or
 * {@code !CLASS_NAME} of what was thrown:
 *
 * <pre>
 * open DIR INDEX_INTERVAL_BYTES SEGMENT_INDEX_BYTES LOG_START FILE_TIME_MS -> ok LOG_START LOG_END BASE_OFFSET...
 * high-watermark OFFSET            -> ok HIGH_WATERMARK
 * ask KIND TARGET...               -> ok ANSWER...
 * ask-segment KIND BASE_OFFSET STARTING_OFFSET TARGET...  -> ok ANSWER...
 * batches BASE_OFFSET              -> ok BATCH...
 * close                            -> ok
 * </pre>
 *
 * On a partition of a broker's own ({@link BrokerLog}). NAME=VALUE... are a topic's settings; ORIGIN is one of Kafka's
 * {@code AppendOrigin}, ISOLATION of its {@code FetchIsolation}; LOG is what {@code log-open} answers:
 *
 * <pre>
 * log-open DIR CLEAN RECOVERY_POINT LOG_START NOW_MS NAME=VALUE...
 *                                  -> ok LOG_START LOG_END LAST_STABLE RECOVERY_POINT BASE_OFFSET...
 * log-clock NOW_MS                 -> ok
 * log-append-leader FILE EPOCH ORIGIN     -> ok FIRST_OFFSET LAST_OFFSET LOG
 * log-append-follower FILE EPOCH          -> ok FIRST_OFFSET LAST_OFFSET LOG
 * log-roll | log-truncate OFFSET | log-state     -> ok LOG
 * log-epochs | log-producers       -> ok ENTRY...
 * log-read OFFSET MAX_BYTES MIN_ONE_MESSAGE ISOLATION  -> ok BATCHES ABORTED_TRANSACTION...
 * log-consume OFFSET COMMITTED MAX_BYTES  -> ok RECORD... END
 * log-clean UNCLEANABLE_OFFSET     -> ok FIRST_DIRTY_OFFSET LOG
 * log-flush                        -> ok
 * log-close | log-drop | log-kill  -> ok
 * </pre>
 *
 * On files ({@link Indexes}, {@link BatchWriter}, Filtering, and {@link BatchReads} say what the fields
 * are):
 *
 * <pre>
 * index KIND FILE BASE_OFFSET OPERATION...   -> ok ANSWER...
 * write FILE BATCH...                        -> ok SIZE...
 * filter FILE OUTPUT_FILE KEY LAST_OFFSET... -> ok SIZE
 * read-batches FILE                          -> ok BATCH... END
 * start NODE_ID METADATA_DIR DIRS TOPIC...   -> ok exits REASON, or ok starts PARTITION... (Starting)
 * start-raft NODE_ID METADATA_DIR DIRS       -> ok exits REASON, or ok starts (StartingRaft)
 * </pre>
 *
 * Anything thrown comes back as {@code error SIMPLE_CLASS_NAME MESSAGE}. Recovery cuts the log file that it is given,
 * so callers pass a copy. Nothing is flushed to the device: the readers are on this machine.
 */
public final class KafkaReference {
    private static OpenPartition partition;
    private static BrokerLog log;

    private KafkaReference() {
    }

    public static void main(String[] args) throws IOException {
        PrintStream replies = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] fields = line.split("\t", -1);
            if (fields[0].equals("quit"))
                break;
            replies.println(answer(fields));
        }
        // A start that fails leaves threads that would keep the process.
        Runtime.getRuntime().halt(0);
    }

    private static String answer(String[] fields) {
        try {
            return "ok" + switch (fields[0]) {
                case "recover" -> Recovery.recover(new File(fields[1]), Long.parseLong(fields[2]),
                    Integer.parseInt(fields[3]), Integer.parseInt(fields[4]));
                case "bench" -> Recovery.bench(new File(fields[1]), Long.parseLong(fields[2]),
                    Integer.parseInt(fields[3]), Double.parseDouble(fields[4]));
                case "bench-lookup" -> LookupBench.run(fields[1], new File(fields[2]), Long.parseLong(fields[3]),
                    Double.parseDouble(fields[4]));
                case "bench-records" -> RecordsBench.run(new File(fields[1]), Double.parseDouble(fields[2]));
                case "open" -> open(fields);
                case "high-watermark" -> partition.updateHighWatermark(Long.parseLong(fields[1]));
                case "ask" -> partition.answer(fields[1], targets(fields, 2));
                case "ask-segment" -> partition.answer(fields[1], Long.parseLong(fields[2]),
                    Long.parseLong(fields[3]), targets(fields, 4));
                case "batches" -> partition.batches(Long.parseLong(fields[1]));
                case "close" -> close();
                case "index" -> Indexes.run(fields[1], new File(fields[2]), Long.parseLong(fields[3]), fields, 4);
                case "write" -> BatchWriter.write(Path.of(fields[1]), fields, 2);
                case "filter" -> Filtering.run(Path.of(fields[1]), Path.of(fields[2]), fields[3], fields, 4);
                case "read-batches" -> BatchReads.read(new File(fields[1]));
                case "start" -> KafkaLog.start(fields);
                case "start-raft" -> KafkaLog.startRaft(fields);
                default -> logAnswer(fields);
            };
        } catch (Throwable refusal) {
            // Errors too: a count near Int32.max in a compressed control batch ends in OutOfMemoryError.
            return "error\t" + refusal.getClass().getSimpleName() + "\t" + escape(String.valueOf(refusal.getMessage()));
        }
    }

    private static String logAnswer(String[] fields) throws Exception {
        return switch (fields[0]) {
            case "log-open" -> openLog(fields);
            case "log-clock" -> log.setClock(Long.parseLong(fields[1]));
            case "log-append-leader" -> log.appendAsLeader(Path.of(fields[1]), Integer.parseInt(fields[2]), fields[3]);
            case "log-append-follower" -> log.appendAsFollower(Path.of(fields[1]), Integer.parseInt(fields[2]));
            case "log-roll" -> log.roll();
            case "log-truncate" -> log.truncateTo(Long.parseLong(fields[1]));
            case "log-state" -> log.describe();
            case "log-epochs" -> log.epochs();
            case "log-producers" -> log.producers();
            case "log-read" -> log.read(Long.parseLong(fields[1]), Integer.parseInt(fields[2]),
                Boolean.parseBoolean(fields[3]), fields[4]);
            case "log-consume" -> log.consume(Long.parseLong(fields[1]), Boolean.parseBoolean(fields[2]),
                Integer.parseInt(fields[3]));
            case "log-clean" -> log.clean(Long.parseLong(fields[1]));
            case "log-flush" -> log.flush();
            case "log-close" -> letGo().close();
            case "log-drop" -> letGo().drop();
            case "log-kill" -> letGo().kill();
            default -> throw new IllegalArgumentException("Unknown command " + fields[0]);
        };
    }

    private static String openLog(String[] fields) throws IOException {
        if (log != null)
            letGo().kill();
        log = BrokerLog.open(new File(fields[1]), Boolean.parseBoolean(fields[2]), Long.parseLong(fields[3]),
            Long.parseLong(fields[4]), Long.parseLong(fields[5]), fields, 6);
        return log.describe();
    }

    private static BrokerLog letGo() {
        BrokerLog former = log;
        log = null;
        return former;
    }

    private static String open(String[] fields) throws IOException {
        OpenPartition former = partition;
        partition = null;
        if (former != null)
            former.abandon();
        partition = OpenPartition.open(new File(fields[1]), Integer.parseInt(fields[2]), Integer.parseInt(fields[3]),
            Long.parseLong(fields[4]), Long.parseLong(fields[5]));
        return partition.describe();
    }

    private static String close() throws IOException {
        OpenPartition open = partition;
        partition = null;
        if (open != null)
            open.close();
        return "";
    }

    private static long[] targets(String[] fields, int from) {
        return Arrays.stream(fields, from, fields.length).mapToLong(Long::parseLong).toArray();
    }

    private static String escape(String text) {
        return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r");
    }
}
