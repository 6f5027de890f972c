#include "plan/schedule/schedule_testing_impl.h"

static void refuses(const char *text, const char *place, const char *reason)
{
    tow_plan_schedule_t schedule;
    tow_test_refused(tow_plan_csv_parse(text, strlen(text), &schedule),
                     TOW_INVALID_ARGUMENT, place, reason);
    assert_null(schedule.devices);
}

static void a_printed_schedule_parses_to_itself(void **state)
{
    const char *text = "0F0,0SEND_F0,0R0,0B0,0AR,0U\n"
                       "1F0,1I0,1SEND_B0,1W0,1AR,1U\n";
    tow_test_print_is(tow_test_parse(text), text);
}

static void empty_cells_spaces_and_line_ends_are_ignored(void **state)
{
    tow_test_print_is(tow_test_parse("0F0,,0F1,0B0,,0B1\r\n"
                                     ", 1F0 ,1B0,\t1F1,1B1,,\r\n\n  \n"),
                      "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

static void rows_decide_where_stages_are(void **state)
{
    tow_plan_schedule_t schedule = tow_test_parse("0F0,3F0\n1F0,2F0\n");
    const uint32_t devices[] = {0, 1, 1, 0};
    assert_int_equal(schedule.shape.device_count, 2);
    assert_int_equal(schedule.shape.stage_count, 4);
    assert_int_equal(schedule.shape.microbatch_count, 1);
    assert_memory_equal(schedule.stage_devices, devices, sizeof(devices));
    tow_plan_schedule_deinit(&schedule);
}

static void errors_name_row_column_and_text(void **state)
{
    refuses("0F0,0B0\n1F0,1X0\n", "row 2, column 2: '1X0'", "the actions are");
    refuses("F0", "row 1, column 1: 'F0'", "number of its stage");
    refuses("0F0,,0F", "row 1, column 3: '0F'", "number of its microbatch");
    refuses("0U1", "row 1, column 1: '0U1'", "text after the action");
    refuses("0F1 0F2", "'0F1 0F2'", "text after the action");
    refuses("4096F0", "'4096F0'", "0 to 4095");
    refuses("0F65536", "'0F65536'", "0 to 65535");
    refuses("99999999999999999999F0", "row 1", "0 to 4095");
    refuses("0RECV_F0", "'0RECV_F0'", "the actions are");
}

static void bytes_that_are_no_text_are_not_repeated(void **state)
{
    refuses("0\x01\x1b[31mF0", "'0??[31mF0'", "the actions are");
    refuses("0aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa0",
            "'0aaaaaaaaaaaaaaaaaaaaaaa...'", "the actions are");
}

static void rows_without_actions_are_refused(void **state)
{
    refuses("", "no action", "the schedule");
    refuses(",,\n", "no action", "the schedule");
    refuses("0F0\n\n1F0\n", "row 2 has no action", "device");
}

static tow_exhaust_result_t parse_once(void *context)
{
    tow_plan_schedule_t schedule;
    tow_status_t status =
        tow_plan_csv_parse(context, strlen(context), &schedule);
    char *text = NULL;
    size_t size;
    if (status == TOW_OK) status = tow_plan_csv_print(&schedule, &text, &size);
    const bool failed = status != TOW_OK;
    tow_status_release(status);
    tow_free(text);
    tow_plan_schedule_deinit(&schedule);
    return failed ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void parsing_survives_exhausted_memory(void **state)
{
    assert_true(tow_test_exhaust(parse_once, "0F0,0B0\n1F0,1B0\n") > 3);
}

TOW_TEST_MAIN(cmocka_unit_test(a_printed_schedule_parses_to_itself),
              cmocka_unit_test(empty_cells_spaces_and_line_ends_are_ignored),
              cmocka_unit_test(rows_decide_where_stages_are),
              cmocka_unit_test(errors_name_row_column_and_text),
              cmocka_unit_test(bytes_that_are_no_text_are_not_repeated),
              cmocka_unit_test(rows_without_actions_are_refused),
              cmocka_unit_test(parsing_survives_exhausted_memory))
