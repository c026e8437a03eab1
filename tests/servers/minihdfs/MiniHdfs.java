import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node and a data node in this process, until standard input ends. */
public final class MiniHdfs {
  public static void main(String[] arguments) throws IOException {
    Configuration configuration = new HdfsConfiguration();
    configuration.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[0]);
    configuration.setInt("dfs.namenode.handler.count", 4);
    // Files of a few MiB span several blocks.
    configuration.setLong("dfs.blocksize", 4 << 20);
    configuration.setLong("dfs.namenode.fs-limits.min-block-size", 1 << 20);
    try (MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(configuration).numDataNodes(1).build()) {
      cluster.waitActive();
      System.out.println(cluster.getURI());
      System.out.flush();
      while (System.in.read() >= 0) {
        // Whoever started this process closes its standard input, or dies.
      }
    }
    System.exit(0);
  }
}
