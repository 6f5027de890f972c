/* A schedule that parses prints as one that parses to the same, and the checker
 * comes to the same verdict. One that passes the checker can be simulated. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "fuzz.h"
#include "plan/schedule/check.h"
#include "plan/schedule/csv.h"
#include "plan/schedule/simulate.h"

static void check_message(tow_status_t status)
{
    TOW_ASSERT(strchr(tow_status_message(status), '\n') == NULL);
}

static void check_printed_form(const tow_plan_schedule_t *schedule)
{
    char *text;
    char *text_again;
    size_t size;
    size_t size_again;
    tow_plan_schedule_t again;
    TOW_ASSERT(tow_plan_csv_print(schedule, &text, &size) == TOW_OK);
    TOW_ASSERT(tow_plan_csv_parse(text, size, &again) == TOW_OK);
    TOW_ASSERT(tow_plan_csv_print(&again, &text_again, &size_again) == TOW_OK);
    TOW_ASSERT(size == size_again && memcmp(text, text_again, size) == 0);
    TOW_ASSERT(memcmp(&again.shape, &schedule->shape, sizeof(again.shape)) ==
               0);
    tow_plan_schedule_deinit(&again);
    tow_free(text);
    tow_free(text_again);
}

static void check_simulation(const tow_plan_schedule_t *schedule)
{
    const tow_plan_costs_t costs = {0};
    tow_plan_timeline_t timeline;
    TOW_ASSERT(tow_plan_simulate(schedule, &costs, &timeline) == TOW_OK);
    TOW_ASSERT(timeline.step_ns == 0);
    for (uint32_t d = 0; d < timeline.device_count; d++)
        TOW_ASSERT(timeline.devices[d].activation_count_peak > 0);
    tow_plan_timeline_deinit(&timeline);
}

static void check_verdict(const tow_plan_schedule_t *schedule)
{
    tow_plan_fault_t fault;
    tow_status_t status = tow_plan_schedule_check(schedule, NULL, &fault);
    if (status == TOW_OK)
        check_simulation(schedule);
    else
        check_message(status);
    if (fault.kind != TOW_PLAN_FAULT_NONE) {
        TOW_ASSERT(status != TOW_OK);
        TOW_ASSERT(fault.place.device < schedule->shape.device_count);
        TOW_ASSERT(fault.place.index == TOW_PLAN_NONE ||
                   fault.place.index <
                       schedule->devices[fault.place.device].count);
    }
    tow_status_release(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tow_plan_schedule_t schedule;
    tow_status_t status =
        tow_plan_csv_parse((const char *)bytes, count, &schedule);
    if (status == TOW_OK) {
        check_printed_form(&schedule);
        check_verdict(&schedule);
        tow_plan_schedule_deinit(&schedule);
    } else {
        check_message(status);
    }
    tow_status_release(status);
    return 0;
}
