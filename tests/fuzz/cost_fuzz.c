/* A cost program that parses prints as one that parses to the same. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/sim/cost.h"
#include "fuzz.h"

static void check_printed_form(const tow_sim_cost_t *cost)
{
    char *text = NULL;
    char *text_again = NULL;
    size_t size = 0;
    size_t size_again = 0;
    tow_sim_cost_t again;
    TOW_ASSERT(tow_sim_cost_print(cost, &text, &size) == TOW_OK);
    TOW_ASSERT(tow_sim_cost_parse(text, size, &again) == TOW_OK);
    TOW_ASSERT(tow_sim_cost_print(&again, &text_again, &size_again) == TOW_OK);
    TOW_ASSERT(size == size_again && memcmp(text, text_again, size) == 0);
    TOW_ASSERT(again.step_count == cost->step_count);
    TOW_ASSERT(again.alias_count == cost->alias_count);
    tow_sim_cost_deinit(&again);
    tow_free(text);
    tow_free(text_again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tow_sim_cost_t cost;
    tow_status_t status = tow_sim_cost_parse(bytes, count, &cost);
    if (status == TOW_OK) {
        check_printed_form(&cost);
        tow_sim_cost_deinit(&cost);
    } else {
        TOW_ASSERT(strchr(tow_status_message(status), '\n') == NULL);
    }
    tow_status_release(status);
    return 0;
}
