/* compile_mutations PLUGIN FOLDER COUNT [SEED]: program bytes into compile, in
 * a child process.
 *
 * XLA is not built for libFuzzer, and a child costs half a second when it has
 * crashed, so this is no LLVMFuzzerTestOneInput: it takes the programs of
 * FOLDER as they are, then COUNT mutations of them (StableHLO text and portable
 * artifacts), and compiles each in the child compiler with PLUGIN. Each must
 * end in a status, and this process must survive. Crashes and endless loops of
 * the child are expected, and counted. SEED reproduces the mutations; TOW_KEEP
 * names a folder for those that crash or loop. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/random.h"
#include "device/compiler/child.h"
#include "env/net/net.h"

#define PROGRAM_BYTES_MAX ((size_t)16384)
#define SEED_COUNT_MAX    64
#define EDIT_COUNT_MAX    4
#define EDIT_BYTES_MAX    32

/* Long enough for a child to start on a busy machine; each endless loop takes
 * this long. */
#define TIMEOUT_NS       ((int64_t)10 * 1000000000)
#define MEMORY_BYTES_MAX ((uint64_t)8 << 30)

typedef struct program {
    size_t size;
    uint8_t bytes[PROGRAM_BYTES_MAX];
} program_t;

typedef struct counts {
    uint64_t compiled;
    uint64_t refused;
    uint64_t crashed;
    uint64_t late;
} counts_t;

static struct {
    tow_security_t security;
    tow_net_t *net;
    tow_compiler_t *compiler;
    program_t seeds[SEED_COUNT_MAX];
    bool is_good[SEED_COUNT_MAX]; /* it compiles as it is */
    size_t seed_count;
    tow_random_t random;
    counts_t counts;
    bool is_closed;
} fuzz;

/* -- Programs -------------------------------------------------------------- */

static int is_seed(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void read_seed(const char *folder, const char *name)
{
    char path[4096];
    program_t *program = &fuzz.seeds[fuzz.seed_count];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    TOW_ASSERT(file != NULL);
    program->size = fread(program->bytes, 1, sizeof(program->bytes), file);
    fclose(file);
    TOW_ASSERT(program->size > 0);
    fuzz.seed_count++;
}

static void read_seeds(const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, is_seed, alphasort);
    TOW_ASSERT(count > 0 && count <= SEED_COUNT_MAX);
    for (int i = 0; i < count; i++) {
        read_seed(folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
}

static size_t below(size_t bound)
{
    return (size_t)tow_random_below(&fuzz.random, bound);
}

static void remove_bytes(program_t *program, size_t at, size_t count)
{
    memmove(program->bytes + at, program->bytes + at + count,
            program->size - at - count);
    program->size -= count;
}

static void insert_bytes(program_t *program, size_t at, const uint8_t *bytes,
                         size_t count)
{
    uint8_t copy[EDIT_BYTES_MAX]; /* They may be the program's own. */
    TOW_ASSERT(count <= sizeof(copy));
    if (count > sizeof(program->bytes) - program->size) return;
    memcpy(copy, bytes, count);
    memmove(program->bytes + at + count, program->bytes + at,
            program->size - at);
    memcpy(program->bytes + at, copy, count);
    program->size += count;
}

static size_t piece_of(const program_t *program, size_t at)
{
    const size_t left = program->size - at;
    return 1 + below(left < EDIT_BYTES_MAX ? left : EDIT_BYTES_MAX);
}

static void edit(program_t *program)
{
    const size_t at = below(program->size);
    const program_t *other = &fuzz.seeds[below(fuzz.seed_count)];
    const size_t from = below(other->size);
    size_t count = piece_of(program, at);
    switch (below(6)) {
    case 0: program->bytes[at] ^= (uint8_t)(1u << below(8)); break;
    case 1: program->bytes[at] = (uint8_t)below(256); break;
    case 2: program->bytes[at] += (uint8_t)(below(2) == 0 ? 1 : 255); break;
    case 3:
        if (count < program->size) remove_bytes(program, at, count);
        break;
    case 4: insert_bytes(program, at, program->bytes + at, count); break;
    case 5:
        count = piece_of(other, from);
        insert_bytes(program, at, other->bytes + from, count);
        break;
    default: break;
    }
}

/* -- Compiling ------------------------------------------------------------- */

typedef struct trial {
    tow_compile_job_t job;
    int done_count;
    tow_code_t code;
    char message[160];
} trial_t;

static void done(tow_compile_job_t *job, tow_status_t take_status,
                 tow_compiled_t *take_compiled)
{
    trial_t *trial = TOW_CONTAINER_OF(job, trial_t, job);
    TOW_ASSERT((take_status == TOW_OK) == (take_compiled != NULL));
    trial->done_count++;
    trial->code = tow_status_code(take_status);
    snprintf(trial->message, sizeof(trial->message), "%s",
             tow_status_message(take_status));
    tow_status_release(take_status);
    tow_compiled_destroy(take_compiled);
}

static void save(const program_t *program, const char *name, uint64_t index)
{
    char path[4096];
    const char *folder = getenv("TOW_KEEP");
    if (folder == NULL) return;
    snprintf(path, sizeof(path), "%s/%s_%" PRIu64, folder, name, index);
    FILE *file = fopen(path, "wb");
    if (file == NULL) return;
    fwrite(program->bytes, 1, program->size, file);
    fclose(file);
}

static void judge(const trial_t *trial, const program_t *program,
                  uint64_t index, const tow_child_compiler_stats_t *before)
{
    const tow_child_compiler_stats_t after =
        tow_child_compiler_stats(fuzz.compiler);
    const bool has_crashed = after.crashed_count > before->crashed_count;
    const bool is_late = after.timed_out_count > before->timed_out_count;
    fuzz.counts.compiled += trial->code == TOW_CODE_OK;
    fuzz.counts.crashed += has_crashed;
    fuzz.counts.late += is_late;
    fuzz.counts.refused +=
        trial->code != TOW_CODE_OK && !has_crashed && !is_late;
    if (!has_crashed && !is_late) return;
    save(program, is_late ? "late" : "crash", index);
    printf("# %" PRIu64 ": %s\n", index, trial->message);
}

/* In a block of exactly its size, so that sanitizers see its end. True if it
 * compiles. */
static bool try_program(const program_t *program, uint64_t index)
{
    uint8_t *bytes = malloc(program->size);
    TOW_ASSERT(bytes != NULL);
    memcpy(bytes, program->bytes, program->size);
    const tow_child_compiler_stats_t before =
        tow_child_compiler_stats(fuzz.compiler);
    trial_t trial = {.job = {.program = {bytes, program->size}, .done = done}};
    TOW_ASSERT(tow_compiler_submit(fuzz.compiler, &trial.job) == TOW_SUBMIT_OK);
    while (trial.done_count == 0)
        tow_net_turn(fuzz.net, TOW_TIME_NEVER);
    TOW_ASSERT(trial.done_count == 1);
    judge(&trial, program, index, &before);
    free(bytes);
    return trial.code == TOW_CODE_OK;
}

static void try_mutation(uint64_t index)
{
    static program_t program;
    program = fuzz.seeds[below(fuzz.seed_count)];
    /* Mostly one: more are refused early, by the parser. */
    size_t count = 0;
    do {
        edit(&program);
    } while (++count < EDIT_COUNT_MAX && below(2) == 0);
    try_program(&program, index);
}

/* -- Main ---------------------------------------------------------------- */

static void open_compiler(const char *plugin)
{
    char program[4096];
    const tow_net_options_t net = {.name = "fuzz", .security = &fuzz.security};
    TOW_ASSERT(tow_net_create(&net, &fuzz.net) == TOW_OK);
    tow_status_t status = tow_child_compiler_find(program, sizeof(program));
    if (status != TOW_OK) {
        fprintf(stderr, "%s\n", tow_status_message(status));
        exit(1);
    }
    const tow_child_compiler_options_t options = {.program = program,
                                                  .plugin = plugin,
                                                  .timeout_ns = TIMEOUT_NS,
                                                  .memory_bytes_max =
                                                      MEMORY_BYTES_MAX};
    TOW_ASSERT(tow_child_compiler_create(tow_net_env(fuzz.net), &options,
                                         &fuzz.compiler) == TOW_OK);
}

static void note_closed(void *context)
{
    (void)context;
    fuzz.is_closed = true;
}

static void close_compiler(void)
{
    tow_compiler_close(fuzz.compiler, (tow_closed_t){.run = note_closed});
    while (!fuzz.is_closed)
        tow_net_turn(fuzz.net, TOW_TIME_NEVER);
    tow_net_destroy(fuzz.net);
}

static void report(int number, const char *what, bool is_ok)
{
    const counts_t *counts = &fuzz.counts;
    printf("# compiled %" PRIu64 ", refused %" PRIu64 ", crashed %" PRIu64
           ", too slow %" PRIu64 "\n%s %d - %s\n",
           counts->compiled, counts->refused, counts->crashed, counts->late,
           is_ok ? "ok" : "not ok", number, what);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s PLUGIN FOLDER COUNT [SEED]\n", argv[0]);
        return 2;
    }
    const uint64_t count = strtoull(argv[3], NULL, 10);
    const uint64_t seed = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
    tow_random_init(&fuzz.random, seed);
    read_seeds(argv[2]);
    open_compiler(argv[1]);
    printf("1..3\n# seed %" PRIu64 "\n", seed);
    for (size_t i = 0; i < fuzz.seed_count; i++)
        fuzz.is_good[i] = try_program(&fuzz.seeds[i], i);
    const bool some_compile = fuzz.counts.compiled > 0;
    report(1, "every program of the corpus ends in a status", some_compile);
    for (uint64_t i = 0; i < count; i++)
        try_mutation(i);
    report(2, "every mutation ends in a status", true);
    const uint64_t before = fuzz.counts.compiled;
    for (size_t i = 0; i < fuzz.seed_count; i++)
        if (fuzz.is_good[i]) try_program(&fuzz.seeds[i], i);
    const bool still_compile = fuzz.counts.compiled > before;
    report(3, "the compiler lives on", still_compile);
    close_compiler();
    return some_compile && still_compile ? 0 : 1;
}
