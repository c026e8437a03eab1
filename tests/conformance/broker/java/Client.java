import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;

/**
 * Kafka's own clients behind a line protocol.
 *
 * <p>Usage: {@code Client BOOTSTRAP}. A request is a line of words: a command, names, {@code key=value} options. The
 * reply is any number of lines and then {@code ok}, or {@code error} and a text.
 */
public final class Client {
    private final Topics topics;
    private final Producing producing;
    private final Reading reading;
    private final OpenProducers open;

    private Client(String bootstrap) {
        topics = new Topics(bootstrap);
        producing = new Producing(bootstrap);
        reading = new Reading(bootstrap);
        open = new OpenProducers(bootstrap);
    }

    public static void main(String[] args) throws Exception {
        Client client = new Client(args[0]);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String request = requests.readLine(); request != null; request = requests.readLine()) {
            try {
                client.answer(List.of(request.split(" "))).forEach(System.out::println);
                System.out.println("ok");
            } catch (Exception failure) {
                failure.printStackTrace();
                System.out.println("error " + failure.toString().replace('\n', ' '));
            }
            System.out.flush();
        }
        // No orderly exit: it would end transactions that are meant to stay open.
        Runtime.getRuntime().halt(0);
    }

    private List<String> answer(List<String> words) throws Exception {
        List<String> rest = words.subList(1, words.size());
        switch (words.get(0)) {
            case "create":
                return topics.create(rest.get(0), Integer.parseInt(rest.get(1)), replicas(rest.get(2)),
                    new Options(rest.subList(3, rest.size())));
            case "reassign":
                return topics.reassign(replicas(rest.get(0)), rest.subList(1, rest.size()));
            case "move":
                return topics.move(Integer.parseInt(rest.get(0)), rest.get(1), rest.subList(2, rest.size()));
            case "await-in-sync":
                return topics.awaitInSync(Integer.parseInt(rest.get(0)), rest.subList(1, rest.size()));
            case "delete-records":
                return topics.deleteRecords(rest.get(0), Integer.parseInt(rest.get(1)), Long.parseLong(rest.get(2)));
            case "producers":
                return topics.producers(rest);
            case "open":
                return open.open(rest.get(0), Boolean.parseBoolean(rest.get(1)));
            case "begin":
                return open.begin(rest.get(0));
            case "send":
                return open.send(rest.get(0), rest.get(1), Integer.parseInt(rest.get(2)));
            case "commit":
                return open.commit(rest.get(0));
            case "abort":
                return open.abort(rest.get(0));
            case "produce":
                return producing.plain(new Options(rest));
            case "transact":
                return producing.transactions(new Options(rest));
            case "digest":
                return reading.digest(rest.get(0), rest.subList(1, rest.size()));
            case "times":
                return reading.times(Path.of(rest.get(0)));
            case "offsets":
                return reading.offsets(Path.of(rest.get(0)));
            default:
                throw new IllegalArgumentException("no such command: " + words);
        }
    }

    private static List<Integer> replicas(String text) {
        return Arrays.stream(text.split(",")).map(Integer::valueOf).toList();
    }
}
