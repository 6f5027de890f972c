#include "base/testing.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/trace.h"

/* A clock that moves by what the test adds, and one with every reading. */
static int64_t read_stepping_clock(void *context)
{
    int64_t *now_ns = context;
    return ++*now_ns;
}

static tow_trace_ring_t *make_ring(const char *name, size_t count,
                                   int64_t *clock_ns)
{
    tow_trace_ring_t *ring;
    tow_status_t status = tow_trace_ring_create(
        name, count, read_stepping_clock, clock_ns, &ring);
    assert_null(status);
    return ring;
}

static void do_traced_work(int64_t *clock_ns)
{
    TOW_TRACE("outer");
    {
        TOW_TRACE("inner");
        *clock_ns += 100;
    }
    tow_trace_mark("grant.sent", 7);
    tow_trace_count("queue.depth", UINT64_MAX);
}

static void zones_marks_and_counts_are_recorded_in_order(void **state)
{
    int64_t clock_ns = 0;
    tow_trace_ring_t *ring = make_ring("main", 16, &clock_ns);
    assert_null(tow_trace_attach(ring));
    do_traced_work(&clock_ns);
    assert_ptr_equal(tow_trace_attach(NULL), ring);

    assert_int_equal(tow_trace_ring_count(ring), 4);
    const tow_trace_event_t *inner = tow_trace_ring_at(ring, 0);
    const tow_trace_event_t *mark = tow_trace_ring_at(ring, 1);
    const tow_trace_event_t *count = tow_trace_ring_at(ring, 2);
    const tow_trace_event_t *outer = tow_trace_ring_at(ring, 3);
    assert_string_equal(inner->name, "inner");
    assert_int_equal(inner->kind, TOW_TRACE_ZONE);
    assert_int_equal(inner->time_ns, 2);
    assert_int_equal(inner->duration_ns, 101);
    assert_string_equal(mark->name, "grant.sent");
    assert_int_equal(mark->kind, TOW_TRACE_MARK);
    assert_int_equal(mark->value, 7);
    assert_int_equal(count->kind, TOW_TRACE_COUNT);
    assert_true(count->value == UINT64_MAX);
    assert_string_equal(outer->name, "outer");
    assert_int_equal(outer->time_ns, 1);
    assert_int_equal(outer->duration_ns, 105);
    assert_int_equal(tow_trace_ring_dropped(ring), 0);
    tow_trace_ring_destroy(ring);
}

static void thread_without_a_ring_records_nothing(void **state)
{
    int64_t clock_ns = 0;
    do_traced_work(&clock_ns);
    assert_int_equal(clock_ns, 100); /* Nobody read it. */
}

static void ring_keeps_the_newest_events(void **state)
{
    int64_t clock_ns = 0;
    tow_trace_ring_t *ring = make_ring("main", 5, &clock_ns);
    tow_trace_attach(ring);
    for (uint64_t i = 0; i < 23; i++) {
        tow_trace_mark("step", i);
        size_t count = tow_trace_ring_count(ring);
        assert_int_equal(count, i < 5 ? i + 1 : 5);
        for (size_t k = 0; k < count; k++)
            assert_int_equal(tow_trace_ring_at(ring, k)->value,
                             i + 1 - count + k);
        assert_int_equal(tow_trace_ring_dropped(ring), i + 1 - count);
    }
    tow_trace_attach(NULL);
    tow_trace_ring_destroy(ring);
}

static void zone_durations_are_neither_cut_nor_negative(void **state)
{
    int64_t clock_ns = 0;
    tow_trace_ring_t *ring = make_ring("main", 5, &clock_ns);
    tow_trace_attach(ring);
    {
        TOW_TRACE("long");
        clock_ns += (int64_t)10 * 1000000000;
    }
    {
        TOW_TRACE("backwards");
        clock_ns -= 1000;
    }
    tow_trace_attach(NULL);
    assert_int_equal(tow_trace_ring_at(ring, 0)->duration_ns,
                     (int64_t)10 * 1000000000 + 1);
    assert_int_equal(tow_trace_ring_at(ring, 1)->duration_ns, 0);
    tow_trace_ring_destroy(ring);
}

static void zone_survives_detaching_inside_it(void **state)
{
    int64_t clock_ns = 0;
    tow_trace_ring_t *ring = make_ring("main", 5, &clock_ns);
    tow_trace_attach(ring);
    {
        TOW_TRACE("cut short");
        tow_trace_attach(NULL);
    }
    assert_int_equal(tow_trace_ring_count(ring), 0);
    tow_trace_ring_destroy(ring);
}

static void real_clock_never_steps_back(void **state)
{
    tow_trace_ring_t *ring;
    assert_null(tow_trace_ring_create("main", 1000, NULL, NULL, &ring));
    tow_trace_attach(ring);
    for (int i = 0; i < 1000; i++)
        tow_trace_mark("tick", 0);
    tow_trace_attach(NULL);
    for (size_t i = 1; i < 1000; i++)
        assert_true(tow_trace_ring_at(ring, i)->time_ns >=
                    tow_trace_ring_at(ring, i - 1)->time_ns);
    tow_trace_ring_destroy(ring);
}

static void senseless_ring_sizes_are_refused(void **state)
{
    static const size_t sizes[] = {0, SIZE_MAX, SIZE_MAX / 32};
    for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++) {
        tow_trace_ring_t *ring;
        tow_status_t status =
            tow_trace_ring_create("main", sizes[i], NULL, NULL, &ring);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        assert_null(ring);
        tow_status_release(status);
    }
}

static tow_exhaust_result_t create_ring(void *context)
{
    tow_trace_ring_t *ring;
    tow_status_t status = tow_trace_ring_create("main", 10, NULL, NULL, &ring);
    bool created = status == TOW_OK;
    assert_true(created == (ring != NULL));
    tow_status_release(status);
    tow_trace_ring_destroy(ring);
    return created ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

static void ring_create_survives_exhausted_memory(void **state)
{
    assert_int_equal(tow_test_exhaust(create_ring, NULL), 2);
}

/* Exports the rings and parses what came out. */
static json_t *export_and_parse(const char *process_name,
                                tow_trace_ring_t *const *rings,
                                size_t ring_count)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    assert_null(tow_trace_write_json(out, process_name, rings, ring_count,
                                     TOW_TRACE_SINCE_EVER));
    fclose(out);
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) fail_msg("%s in: %s", error.text, text);
    free(text);
    return root;
}

static const json_t *find_event(const json_t *root, const char *name)
{
    const json_t *events = json_object_get(root, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        const char *found = json_string_value(json_object_get(event, "name"));
        if (strcmp(found, name) == 0) return event;
    }
    fail_msg("no event %s", name);
    return NULL;
}

static const char *phase_of(const json_t *event)
{
    return json_string_value(json_object_get(event, "ph"));
}

static double number_in(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static void export_is_json_with_every_event(void **state)
{
    int64_t clock_ns = 5000;
    tow_trace_ring_t *rings[2] = {make_ring("loop \"0\"\n", 16, &clock_ns),
                                  make_ring("idle", 16, &clock_ns)};
    tow_trace_attach(rings[0]);
    do_traced_work(&clock_ns);
    tow_trace_attach(NULL);
    json_t *root = export_and_parse("tow \\ test", rings, 2);
    /* Names of the process and of two threads, and four events. */
    assert_int_equal(json_array_size(json_object_get(root, "traceEvents")), 7);

    const json_t *inner = find_event(root, "inner");
    assert_string_equal(phase_of(inner), "X");
    assert_true(number_in(inner, "ts") == 5.002);
    assert_true(number_in(inner, "dur") == 0.101);
    assert_true(number_in(inner, "tid") == 1);
    const json_t *mark = find_event(root, "grant.sent");
    assert_string_equal(phase_of(mark), "i");
    assert_true(number_in(json_object_get(mark, "args"), "value") == 7);
    assert_string_equal(phase_of(find_event(root, "queue.depth")), "C");
    const json_t *thread = find_event(root, "thread_name");
    assert_string_equal(phase_of(thread), "M");
    assert_string_equal(json_string_value(json_object_get(
                            json_object_get(thread, "args"), "name")),
                        "loop \"0\"\n");
    json_decref(root);
    tow_trace_ring_destroy(rings[0]);
    tow_trace_ring_destroy(rings[1]);
}

static void export_writes_negative_and_extreme_times(void **state)
{
    int64_t clock_ns = -1501;
    tow_trace_ring_t *ring = make_ring("main", 16, &clock_ns);
    tow_trace_attach(ring);
    tow_trace_mark("negative", 0);
    clock_ns = INT64_MAX - 1;
    tow_trace_mark("extreme", UINT64_MAX);
    tow_trace_attach(NULL);
    json_t *root = export_and_parse("p", &ring, 1);
    assert_true(number_in(find_event(root, "negative"), "ts") == -1.5);
    assert_true(number_in(find_event(root, "extreme"), "ts") ==
                9223372036854775.807);
    const json_t *args = json_object_get(find_event(root, "extreme"), "args");
    assert_string_equal(json_string_value(json_object_get(args, "value")),
                        "18446744073709551615");
    json_decref(root);
    tow_trace_ring_destroy(ring);
}

static void export_leaves_out_what_ended_before(void **state)
{
    int64_t clock_ns = 0;
    tow_trace_ring_t *ring = make_ring("device", 16, &clock_ns);
    tow_trace_ring_add(ring, &(tow_trace_event_t){.time_ns = 10,
                                                  .name = "before",
                                                  .duration_ns = 89,
                                                  .kind = TOW_TRACE_ZONE});
    tow_trace_ring_add(ring, &(tow_trace_event_t){.time_ns = 10,
                                                  .name = "across",
                                                  .duration_ns = 90,
                                                  .kind = TOW_TRACE_ZONE});
    char text[1024] = "";
    FILE *out = fmemopen(text, sizeof(text), "w");
    assert_non_null(out);
    assert_null(tow_trace_write_json(out, "p", &ring, 1, 100));
    fclose(out);
    assert_null(strstr(text, "before"));
    assert_non_null(strstr(text, "across"));
    tow_trace_ring_destroy(ring);
}

static void export_of_no_rings_is_still_json(void **state)
{
    json_decref(export_and_parse("p", NULL, 0));
}

static void export_to_a_full_disk_is_an_error(void **state)
{
    FILE *full = fopen("/dev/full", "w");
    if (full == NULL) tow_test_skip("no /dev/full here");
    tow_status_t status = tow_trace_write_json(full, "p", NULL, 0, 0);
    assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(tow_status_message(status), "ENOSPC"));
    tow_status_release(status);
    fclose(full);
}

static void *trace_in_thread(void *ring)
{
    tow_trace_attach(ring);
    for (uint64_t i = 0; i < 1000; i++) {
        TOW_TRACE("work");
        tow_trace_count("i", i);
    }
    tow_trace_attach(NULL);
    return NULL;
}

static void threads_trace_into_rings_of_their_own(void **state)
{
    enum {
        THREAD_COUNT = 3
    };
    pthread_t threads[THREAD_COUNT];
    tow_trace_ring_t *rings[THREAD_COUNT];
    for (int i = 0; i < THREAD_COUNT; i++) {
        assert_null(tow_trace_ring_create("t", 4096, NULL, NULL, &rings[i]));
        assert_int_equal(
            pthread_create(&threads[i], NULL, trace_in_thread, rings[i]), 0);
    }
    for (int i = 0; i < THREAD_COUNT; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(tow_trace_ring_count(rings[i]), 2000);
    }
    json_decref(export_and_parse("p", rings, THREAD_COUNT));
    for (int i = 0; i < THREAD_COUNT; i++)
        tow_trace_ring_destroy(rings[i]);
}

TOW_TEST_MAIN(cmocka_unit_test(zones_marks_and_counts_are_recorded_in_order),
              cmocka_unit_test(thread_without_a_ring_records_nothing),
              cmocka_unit_test(ring_keeps_the_newest_events),
              cmocka_unit_test(zone_durations_are_neither_cut_nor_negative),
              cmocka_unit_test(zone_survives_detaching_inside_it),
              cmocka_unit_test(real_clock_never_steps_back),
              cmocka_unit_test(senseless_ring_sizes_are_refused),
              cmocka_unit_test(ring_create_survives_exhausted_memory),
              cmocka_unit_test(export_is_json_with_every_event),
              cmocka_unit_test(export_writes_negative_and_extreme_times),
              cmocka_unit_test(export_leaves_out_what_ended_before),
              cmocka_unit_test(export_of_no_rings_is_still_json),
              cmocka_unit_test(export_to_a_full_disk_is_an_error),
              cmocka_unit_test(threads_trace_into_rings_of_their_own))
