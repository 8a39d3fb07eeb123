package org.batchllm.spark;

import java.util.regex.Pattern;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;

/**
 * Whether rows come from a shuffle, as far as their plan shows, so that Spark may give them in another order when it
 * computes them again.
 */
final class Shuffles {
    /**
     * The line of such a node in a plan's text; other engines' nodes have longer names (ColumnarExchange). What a
     * ReusedExchange reuses has a line of its own.
     */
    private static final Pattern EXCHANGE =
            Pattern.compile("(?m)(\\A|^[ :]*[:+]- )(\\*\\(\\d+\\) )?(?!\\w*(Broadcast|Reused))\\w*Exchange\\b");

    private Shuffles() {}

    /**
     * Reads the plan's text, by reflection: the classes of plans have other signatures in other versions of Spark and
     * Scala. False if it cannot be read.
     */
    static boolean in(Dataset<Row> rows) {
        try {
            return inPlan(String.valueOf(call(call(rows, "queryExecution"), "executedPlan")));
        } catch (ReflectiveOperationException | RuntimeException e) {
            return false; // if it is the query's own mistake, running the query reports it
        }
    }

    static boolean inPlan(String text) {
        return EXCHANGE.matcher(text).find();
    }

    private static Object call(Object object, String method) throws ReflectiveOperationException {
        return object.getClass().getMethod(method).invoke(object);
    }
}
