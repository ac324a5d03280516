package headrace;

import java.util.Iterator;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** A class loader that caches which classes are missing. The compiler of Spark's generated code and Py4J look up many
    names that are not classes, again and again, and Java then searches all of its three hundred jars each time. The
    jars of the parent loader do not change any more; jars that are added later have loaders with this one as parent. */
public final class MissingClassCache extends ClassLoader {
    private static final int MAX_NAMES = 100000;

    static {
        registerAsParallelCapable();
    }

    private final Set missing = ConcurrentHashMap.newKeySet();

    private MissingClassCache(ClassLoader parent) {
        super(parent);
    }

    /** Set it as the loader of all threads that have the same loader as the current one. Threads inherit it. */
    public static void install() {
        ClassLoader parent = Thread.currentThread().getContextClassLoader();
        if (parent instanceof MissingClassCache) {
            return;
        }
        ClassLoader cache = new MissingClassCache(parent);
        for (Iterator threads = Thread.getAllStackTraces().keySet().iterator(); threads.hasNext();) {
            Thread thread = (Thread) threads.next();
            if (thread.getContextClassLoader() == parent) {
                thread.setContextClassLoader(cache);
            }
        }
    }

    protected Class loadClass(String name, boolean resolve) throws ClassNotFoundException {
        if (missing.contains(name)) {
            throw new Missing(name);
        }
        try {
            return getParent().loadClass(name);
        } catch (ClassNotFoundException error) {
            if (missing.size() >= MAX_NAMES) {
                missing.clear();
            }
            missing.add(name);
            throw error;
        }
    }

    /** Without a stack trace, which costs more than everything else here and is never used. */
    private static final class Missing extends ClassNotFoundException {
        Missing(String name) {
            super(name);
        }

        public Throwable fillInStackTrace() {
            return this;
        }
    }
}
