/* A compiler in child processes, each with a PJRT plugin of its own.
 *
 * A child (the program tow_compile_child) loads the plugin, makes a client, and
 * compiles one program after the other; it stays for the next one, because the
 * start of XLA costs far more than a small program. It inherits no descriptor,
 * and ends with us, whatever happens to us. It is replaced when it has crashed,
 * was too slow, made no sense, or has compiled enough.
 *
 * The plugin's client in the child is a second one on this host: XLA's CPU does
 * not mind, but devices that one process can have at a time (TPUs) are taken by
 * it, or refuse it. For those, compile where the devices are (direct.h). */
#ifndef TOW_DEVICE_COMPILER_CHILD_H_
#define TOW_DEVICE_COMPILER_CHILD_H_

#include <sys/types.h>

#include "device/compiler/cache.h"
#include "device/compiler/compiler.h"
#include "device/pjrt/pjrt.h"

typedef struct tow_child_compiler_options {
    const char *program; /* copied: see tow_child_compiler_find */
    const char *plugin;  /* copied: path of a PJRT plugin */
    /* Options of the plugin's client; copied. Numbers that are addresses in this
     * process mean nothing there. */
    const tow_pjrt_value_t *values;
    size_t value_count;
    size_t child_count_max;     /* 0: TOW_COMPILER_CHILD_COUNT_DEFAULT */
    size_t queue_count_max;     /* 0: TOW_COMPILER_QUEUE_COUNT_MAX */
    int64_t timeout_ns;         /* of a program; 0: TOW_COMPILER_TIMEOUT_NS */
    uint64_t memory_bytes_max;  /* of a child's private memory; 0: no limit */
    uint64_t compile_count_max; /* 0: TOW_COMPILER_COMPILE_COUNT_MAX */
    /* Lent. Who forks children that have the plugin loaded (launch.h), if it
     * does; 0: they are programs that load it. */
    int launcher_fd;
    const tow_code_cache_t *cache; /* lent; NULL: nothing is kept on disk */
} tow_child_compiler_options_t;

/* Starts no process yet. */
tow_status_t tow_child_compiler_create(
    tow_env_t *env, const tow_child_compiler_options_t *options,
    tow_compiler_t **out_compiler) TOW_MUST_USE;

typedef struct tow_child_compiler_stats {
    uint64_t started_count; /* children, since it was created */
    uint64_t crashed_count; /* children that ended by themselves */
    uint64_t late_count;    /* children that were ended for being too slow */
    uint64_t found_count;   /* programs that were found in the cache */
    pid_t pid;              /* of the first child; 0: there is none now */
} tow_child_compiler_stats_t;

/* Of a compiler from tow_child_compiler_create. */
tow_child_compiler_stats_t tow_child_compiler_stats(
    const tow_compiler_t *compiler);

/* Where the program of children is: TOW_COMPILE_CHILD names it, or it is beside
 * this program in a build folder, or where `make install` puts it. NOT_FOUND
 * says how to get it. */
tow_status_t tow_child_compiler_find(char *path, size_t capacity) TOW_MUST_USE;

/* What a child does, in a process that is one: see child_work.c for the words.
 * Its descriptors are as tow_child_process_start leaves them. */
int tow_compile_child_main(int argc, char **argv);

#endif /* TOW_DEVICE_COMPILER_CHILD_H_ */
