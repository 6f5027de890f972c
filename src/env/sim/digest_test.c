#include "base/testing.h"

#include <stdlib.h>
#include <string.h>

#include "env/sim/digest_impl.h"

static const tow_sim_event_t plain = {.time_ns = 5,
                                      .kind = EVENT_MESSAGE,
                                      .node = 1,
                                      .peer = 2,
                                      .type = 3,
                                      .size = 4,
                                      .content = 6};

static uint64_t digest_of(const tow_sim_event_t *events, size_t count)
{
    tow_sim_digest_t digest = {0};
    for (size_t i = 0; i < count; i++)
        tow_sim_digest_add(&digest, &events[i]);
    return digest.value;
}

static void every_field_counts(void **state)
{
    (void)state;
    tow_sim_event_t events[8];
    for (size_t i = 0; i < TOW_COUNT_OF(events); i++)
        events[i] = plain;
    events[1].time_ns++;
    events[2].kind++;
    events[3].node++;
    events[4].peer++;
    events[5].type++;
    events[6].size++;
    events[7].content++;
    for (size_t a = 0; a < TOW_COUNT_OF(events); a++) {
        for (size_t b = 0; b < a; b++)
            assert_int_not_equal(digest_of(&events[a], 1),
                                 digest_of(&events[b], 1));
    }
}

static void the_order_of_events_counts(void **state)
{
    (void)state;
    tow_sim_event_t forth[2] = {plain, plain};
    forth[1].node = 9;
    tow_sim_event_t back[2] = {forth[1], forth[0]};
    assert_int_not_equal(digest_of(forth, 2), digest_of(back, 2));
}

static void a_zero_factor_does_not_erase_the_history(void **state)
{
    (void)state;
    /* Whatever comes last, the digest still depends on what came first. */
    tow_sim_event_t events[2] = {plain, {.kind = EVENT_TIMER}};
    for (uint64_t bit = 0; bit < 64; bit++) {
        events[1].content = UINT64_C(1) << bit;
        events[0].size = 4;
        uint64_t four = digest_of(events, 2);
        events[0].size = 5;
        assert_int_not_equal(digest_of(events, 2), four);
    }
}

static void the_digest_is_the_same_on_every_machine(void **state)
{
    (void)state;
    tow_sim_event_t events[2] = {plain, plain};
    assert_int_equal(digest_of(events, 2), UINT64_C(0xd0271782fc8f7939));
}

static void a_line_names_what_happened(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size;
    FILE *log = open_memstream(&text, &size);
    tow_sim_digest_t digest = {.log = log};
    tow_sim_digest_add(&digest, &plain);
    tow_sim_event_t cut = {.time_ns = 7,
                           .kind = EVENT_CUT,
                           .node = EVENT_NO_NODE,
                           .peer = EVENT_NO_NODE};
    tow_sim_digest_add(&digest, &cut);
    fclose(log);
    const char *first = "5 message node 1 peer 2 type 3 size 4 content "
                        "0000000000000006 digest ";
    assert_memory_equal(text, first, strlen(first));
    assert_non_null(strstr(text, "\n7 cut type 0 size 0 content "));
    free(text);
}

TOW_TEST_MAIN(cmocka_unit_test(every_field_counts),
              cmocka_unit_test(the_order_of_events_counts),
              cmocka_unit_test(a_zero_factor_does_not_erase_the_history),
              cmocka_unit_test(the_digest_is_the_same_on_every_machine),
              cmocka_unit_test(a_line_names_what_happened))
