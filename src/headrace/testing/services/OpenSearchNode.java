import java.io.IOException;
import org.codelibs.opensearch.runner.OpenSearchRunner;

/** One OpenSearch node on the port that is asked for: the runner's own main takes no port above 9299. */
public class OpenSearchNode {
    public static void main(String[] arguments) {
        final OpenSearchRunner runner = new OpenSearchRunner();
        runner.setMaxHttpPort(-1);
        Runtime.getRuntime().addShutdownHook(new Thread() {
            public void run() {
                try {
                    runner.close();
                } catch (IOException error) {
                    System.err.println(error.getMessage());
                }
            }
        });
        try {
            runner.build(arguments);
            Thread.currentThread().join();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }
}
