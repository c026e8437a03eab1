import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import joptsimple.OptionParser;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.tools.OffsetsUtils;
import org.apache.kafka.tools.OffsetsUtils.OffsetsUtilsOptions;

/**
 * What kafka-consumer-groups reads in a file of --reset-offsets --from-file: asked with the path of a file, answered
 * with TOPIC-PARTITION=OFFSET for each partition of the group, sorted. No broker is asked.
 */
public class ResetPlan {
    private static final String GROUP = "readers";

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // where Kafka's logging goes
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        out.println("ready");
        for (String path = in.readLine(); path != null; path = in.readLine()) {
            OffsetsUtilsOptions options =
                new OffsetsUtilsOptions(List.of(GROUP), null, List.of(path), null, null, null, 0);
            out.println(answer(new OffsetsUtils(null, new OptionParser(), options).resetPlanFromFile().get().get(GROUP)));
        }
    }

    private static String answer(Map<TopicPartition, OffsetAndMetadata> plan) {
        return plan.entrySet().stream()
            .map(each -> each.getKey() + "=" + each.getValue().offset())
            .sorted()
            .collect(Collectors.joining(" "));
    }
}
