package headrace;

import java.util.Iterator;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** A loader that remembers which classes are not there. The compiler of Spark's generated code, and who reaches Java
    from Python, ask for many names that are none, over and over, and each time Java looks for them in all of its three
    hundred jars. The jars of the loader that is asked do not change any more; those that come later have loaders of
    their own, whose parent this one is. */
public final class Classes extends ClassLoader {
    private static final int MOST = 100000;

    static {
        registerAsParallelCapable();
    }

    private final Set missing = ConcurrentHashMap.newKeySet();

    private Classes(ClassLoader parent) {
        super(parent);
    }

    /** Have all threads ask it that ask the same loader as this one, and with them all that they start. */
    public static void install() {
        ClassLoader known = Thread.currentThread().getContextClassLoader();
        if (known instanceof Classes) {
            return;
        }
        ClassLoader remembering = new Classes(known);
        for (Iterator threads = Thread.getAllStackTraces().keySet().iterator(); threads.hasNext();) {
            Thread thread = (Thread) threads.next();
            if (thread.getContextClassLoader() == known) {
                thread.setContextClassLoader(remembering);
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
            if (missing.size() >= MOST) {
                missing.clear();
            }
            missing.add(name);
            throw error;
        }
    }

    /** Without a trace, which costs more than everything else here, and which nobody looks at. */
    private static final class Missing extends ClassNotFoundException {
        Missing(String name) {
            super(name);
        }

        public Throwable fillInStackTrace() {
            return this;
        }
    }
}
