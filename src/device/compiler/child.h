/* A compiler in child processes (device/child/pool.h), each with its own PJRT
 * plugin.
 *
 * A child (the program tow_compile_child) loads the plugin, makes a client, and
 * compiles one program after the other. It stays for the next one, because
 * starting XLA costs far more than compiling a small program.
 *
 * The child's client is a second one on this host. XLA's CPU client permits
 * that; a device that only one process can open (a TPU) does not. For those,
 * compile in the process that has the devices (direct.h). */
#ifndef TOW_DEVICE_COMPILER_CHILD_H_
#define TOW_DEVICE_COMPILER_CHILD_H_

#include <sys/types.h>

#include "device/compiler/cache.h"
#include "device/compiler/compiler.h"
#include "device/pjrt/pjrt.h"

typedef struct tow_child_compiler_options {
    const char *program; /* copied: see tow_child_compiler_find */
    const char *plugin;  /* copied: path of a PJRT plugin */
    /* Options of the plugin's client; copied. They must not be addresses in
     * this process. */
    const tow_pjrt_value_t *values;
    size_t value_count;
    size_t child_count_max;     /* 0: TOW_COMPILER_CHILD_COUNT_DEFAULT */
    size_t queue_count_max;     /* 0: TOW_COMPILER_QUEUE_COUNT_MAX */
    int64_t timeout_ns;         /* of a program; 0: TOW_COMPILER_TIMEOUT_NS */
    uint64_t memory_bytes_max;  /* of a child's private memory; 0: no limit */
    uint64_t compile_count_max; /* 0: TOW_COMPILER_COMPILE_COUNT_MAX */
    /* Lent. The fork server, whose children have the plugin loaded
     * (device/child/fork_request.h); 0: none, children load it themselves. */
    int fork_server_fd;
    const tow_code_cache_t *cache; /* lent; NULL: none */
} tow_child_compiler_options_t;

/* Starts no process yet. */
tow_status_t tow_child_compiler_create(
    tow_env_t *env, const tow_child_compiler_options_t *options,
    tow_compiler_t **out_compiler) TOW_MUST_USE;

typedef struct tow_child_compiler_stats {
    uint64_t started_count;   /* children */
    uint64_t crashed_count;   /* children that ended by themselves */
    uint64_t timed_out_count; /* children that exceeded the time limit */
    uint64_t cache_hit_count; /* programs that were in the cache */
    pid_t pid;                /* of the first child; 0: none now */
} tow_child_compiler_stats_t;

/* Of a compiler from tow_child_compiler_create. */
tow_child_compiler_stats_t tow_child_compiler_stats(
    const tow_compiler_t *compiler);

/* Finds the children's program: TOW_COMPILE_CHILD names it, or it is in the
 * build folder beside this program, or where `make install` put it. NOT_FOUND
 * says how to get it. */
tow_status_t tow_child_compiler_find(char *path, size_t capacity) TOW_MUST_USE;

/* The main function of a child: see child_work.c for the arguments. Its
 * descriptors are as tow_child_process_start leaves them. */
int tow_compile_child_main(int argc, char **argv);

#endif /* TOW_DEVICE_COMPILER_CHILD_H_ */
