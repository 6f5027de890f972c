/* The controller's books against the memory that devices really use, in random
 * programs; tests/integration/test_books.py runs it on real clusters.
 *
 *     books SEED COUNT [tell]
 *
 * Each program is run once, alone. For every device the peak of its books
 * during the run, from the upload of the arguments until everything is freed,
 * is compared with the device's own peak:
 *
 *  - Books below it are an error.
 *  - Books more than 5% above it are counted. Transfers of less than 64 KiB are
 *    exempt: they are counted but nothing waits for them.
 *  - Books more than 5% above it are an error if transfers do not explain it.
 *    Books count a transferred value as long as it may be there; whether it is
 *    depends on how fast it is sent.
 *
 * `tell` prints the nodes of each program and the peaks. The last line is a
 * summary. The exit status is 1 after an error. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../examples/c/check.h"
#include "random_program.h"

#define ABOVE_PERCENT_MAX 5
#define POLL_US           2000

typedef struct peak {
    uint64_t books;
    uint64_t device;
} peak_t;

typedef struct totals {
    size_t program_count, node_count;
    size_t below_count, above_count; /* devices in programs */
    size_t unexplained_count;        /* of above_count */
    size_t device_count;             /* the same, that were used at all */
    double above_percent_max, above_percent_sum;
} totals_t;

/* -- Peaks ------------------------------------------------------------------ */

static uint64_t number_of(const json_t *object, const char *name)
{
    const json_t *number = json_object_get(object, name);
    if (!json_is_integer(number)) {
        fprintf(stderr, "books: the status has no %s\n", name);
        exit(1);
    }
    return (uint64_t)json_integer_value(number);
}

static void raise(uint64_t *peak, uint64_t bytes)
{
    if (bytes > *peak) *peak = bytes;
}

static peak_t *peak_of(const machine_t *machine, const json_t *device,
                       peak_t *peaks)
{
    const int64_t id = (int64_t)number_of(device, "id");
    for (size_t i = 0; i < machine->device_count; i++)
        if (machine->device_ids[i] == id) return &peaks[i];
    fprintf(stderr, "books: device %" PRId64 " is new\n", id);
    exit(1);
}

/* The bytes that are still in use. */
static uint64_t note_worker(const machine_t *machine, const json_t *worker,
                            peak_t *peaks)
{
    uint64_t left = 0;
    size_t i;
    const json_t *device;
    const json_t *report = json_object_get(worker, "report");
    if (report == NULL) return UINT64_MAX; /* It has not answered in time. */
    json_array_foreach(json_object_get(worker, "devices"), i, device)
    {
        raise(&peak_of(machine, device, peaks)->books,
              number_of(device, "recent_peak_bytes"));
        left |= number_of(device, "object_bytes") |
                number_of(device, "reserved_bytes");
    }
    json_array_foreach(json_object_get(report, "devices"), i, device)
    {
        raise(&peak_of(machine, device, peaks)->device,
              number_of(device, "recent_peak_bytes"));
        left |= number_of(device, "bytes_in_use");
    }
    return left;
}

/* Each report has the peaks since the last one. */
static uint64_t note_peaks(const machine_t *machine, peak_t *peaks)
{
    char *text = NULL;
    uint64_t left = 0;
    size_t i;
    const json_t *worker;
    check(tow_client_report(machine->client, &text));
    json_t *status = json_loads(text, 0, NULL);
    json_array_foreach(json_object_get(status, "workers"), i, worker) left |=
        note_worker(machine, worker, peaks);
    json_decref(status);
    tow_free_text(text);
    return left;
}

static void wait_for_zero(const machine_t *machine, peak_t *peaks)
{
    while (note_peaks(machine, peaks) != 0)
        usleep(POLL_US);
}

/* -- Runs ------------------------------------------------------------------- */

static tow_array_t *upload(const machine_t *machine, const value_t *value)
{
    static uint32_t numbers[6144 << 8];
    tow_array_t *array;
    const size_t count = size_bytes(value->size) / sizeof(numbers[0]);
    for (size_t i = 0; i < count; i++)
        numbers[i] = value->number;
    check(tow_array_upload(
        machine->slices[value->device],
        TOW_WITH(tow_upload_options_t,
                 .type = TOW_ARRAY_TYPE(TOW_TYPE_S32, (int64_t)count),
                 .bytes = numbers, .size = size_bytes(value->size)),
        &array));
    return array;
}

static void expect(tow_array_t *array, const value_t *value, uint64_t seed)
{
    static uint32_t numbers[6144 << 8];
    const size_t count = size_bytes(value->size) / sizeof(numbers[0]);
    check(tow_array_download(array, 0, numbers, size_bytes(value->size)));
    for (size_t i = 0; i < count; i++) {
        if (numbers[i] == value->number) continue;
        fprintf(stderr,
                "books: program %" PRIu64 ": number %zu is %u instead of %u\n",
                seed, i, numbers[i], value->number);
        exit(1);
    }
}

static void run(const machine_t *machine, const random_program_t *program,
                uint64_t seed)
{
    tow_array_t *arguments[ARGUMENTS_MAX], *results[RESULTS_MAX];
    for (size_t i = 0; i < program->argument_count; i++)
        arguments[i] = upload(machine, &program->arguments[i]);
    check(tow_program_run(program->program, arguments, program->argument_count,
                          results, program->result_count));
    for (size_t i = 0; i < program->argument_count; i++)
        tow_array_release(arguments[i]);
    for (size_t i = 0; i < program->result_count; i++) {
        expect(results[i], &program->results[i], seed);
        tow_array_release(results[i]);
    }
}

/* -- Comparing -------------------------------------------------------------- */

static bool is_above(const peak_t *peak, uint64_t exempt_bytes)
{
    return peak->books >
           peak->device + peak->device * ABOVE_PERCENT_MAX / 100 + exempt_bytes;
}

static void count_percent(const peak_t *peak, uint64_t exempt_bytes,
                          totals_t *totals)
{
    if (peak->books <= peak->device + exempt_bytes || peak->device == 0) return;
    const double percent = 100.0 *
                           (double)(peak->books - peak->device - exempt_bytes) /
                           (double)peak->device;
    totals->above_percent_sum += percent;
    if (percent > totals->above_percent_max)
        totals->above_percent_max = percent;
}

static void compare_device(const random_program_t *program, size_t device,
                           const peak_t *peak, uint64_t seed, totals_t *totals)
{
    const uint64_t small = program->small_bytes[device];
    const uint64_t moved = program->moved_bytes[device];
    if (peak->books == 0 && peak->device == 0) return;
    const bool is_below = peak->books < peak->device;
    const bool is_unexplained = is_above(peak, moved);
    totals->device_count++;
    totals->below_count += is_below;
    totals->above_count += is_above(peak, small);
    totals->unexplained_count += is_unexplained;
    count_percent(peak, small, totals);
    if (is_below || is_unexplained)
        printf("program %" PRIu64 ", device %zu: books %" PRIu64
               ", the device's peak %" PRIu64 ", transferred %" PRIu64 ": %s\n",
               seed, device, peak->books, peak->device, moved,
               is_below ? "below" : "above");
}

static void try_program(const machine_t *machine, uint64_t seed, bool is_told,
                        totals_t *totals)
{
    random_program_t program;
    peak_t before[DEVICES_MAX] = {0}, peaks[DEVICES_MAX] = {0};
    random_program_make(machine, seed, is_told, &program);
    wait_for_zero(machine, before);
    run(machine, &program, seed);
    wait_for_zero(machine, peaks);
    for (size_t i = 0; i < machine->device_count; i++) {
        if (is_told)
            printf("  device %zu: books %" PRIu64 ", its peak %" PRIu64 "\n", i,
                   peaks[i].books, peaks[i].device);
        compare_device(&program, i, &peaks[i], seed, totals);
    }
    totals->program_count++;
    totals->node_count += program.node_count;
    tow_program_release(program.program);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: books SEED COUNT [tell]\n");
        return 2;
    }
    const uint64_t first = strtoull(argv[1], NULL, 10);
    const uint64_t count = strtoull(argv[2], NULL, 10);
    const bool is_told = argc > 3 && strcmp(argv[3], "tell") == 0;
    machine_t machine;
    totals_t totals = {0};
    machine_open(&machine);
    for (uint64_t i = 0; i < count; i++)
        try_program(&machine, first + i, is_told, &totals);
    machine_close(&machine);
    printf("books: %zu programs of %zu nodes, %zu peaks: %zu below, %zu more "
           "than %d%% above, %zu of them unexplained; above by %.2f%% in the "
           "mean, %.2f%% at most\n",
           totals.program_count, totals.node_count, totals.device_count,
           totals.below_count, totals.above_count, ABOVE_PERCENT_MAX,
           totals.unexplained_count,
           totals.device_count > 0
               ? totals.above_percent_sum / (double)totals.device_count
               : 0,
           totals.above_percent_max);
    return totals.below_count + totals.unexplained_count > 0;
}
