/* Numbers and sentences of `tow schedule`, and its JSON. */
#include "tool/schedule_drawing.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

/* "12.5 us": at most three digits before the unit, two after the point. */
static const char *scale(uint64_t number, const char *const units[5],
                         char text[TOW_DRAWING_TEXT_MAX])
{
    uint64_t divisor = 1;
    int unit = 0;
    while (unit < 4 && number / divisor >= 1000) {
        divisor *= 1000;
        unit++;
    }
    const uint64_t hundredths =
        (number / divisor) * 100 + number % divisor * 100 / divisor;
    if (hundredths % 100 == 0)
        snprintf(text, TOW_DRAWING_TEXT_MAX, "%" PRIu64 " %s", hundredths / 100,
                 units[unit]);
    else
        snprintf(text, TOW_DRAWING_TEXT_MAX, "%" PRIu64 ".%02" PRIu64 " %s",
                 hundredths / 100, hundredths % 100, units[unit]);
    return text;
}

const char *tow_drawing_time(int64_t time_ns, char text[TOW_DRAWING_TEXT_MAX])
{
    static const char *const units[5] = {"ns", "us", "ms", "s", "ks"};
    if (time_ns == 0) return "0";
    return scale((uint64_t)time_ns, units, text);
}

const char *tow_drawing_bytes(uint64_t bytes, char text[TOW_DRAWING_TEXT_MAX])
{
    static const char *const units[5] = {"B", "kB", "MB", "GB", "TB"};
    return scale(bytes, units, text);
}

const char *tow_drawing_share(uint32_t ppm, char text[TOW_DRAWING_TEXT_MAX])
{
    const uint32_t tenths = (ppm + 500) / 1000;
    snprintf(text, TOW_DRAWING_TEXT_MAX, "%" PRIu32 ".%" PRIu32 "%%",
             tenths / 10, tenths % 10);
    return text;
}

static const char *plural(uint32_t count)
{
    return count == 1 ? "" : "s";
}

void tow_drawing_summary(const tow_drawing_t *drawing, char *text,
                         size_t capacity)
{
    const tow_plan_shape_t *shape = &drawing->schedule->shape;
    const tow_plan_timeline_t *timeline = drawing->timeline;
    char step[TOW_DRAWING_TEXT_MAX];
    char bubble[TOW_DRAWING_TEXT_MAX];
    char period[TOW_DRAWING_TEXT_MAX];
    char period_bubble[TOW_DRAWING_TEXT_MAX];
    snprintf(text, capacity,
             "%s: %" PRIu32 " stage%s on %" PRIu32 " device%s, %" PRIu32
             " microbatch%s: step %s, bubble %s; without a barrier %s, %s",
             drawing->name, shape->stage_count, plural(shape->stage_count),
             shape->device_count, plural(shape->device_count),
             shape->microbatch_count, shape->microbatch_count == 1 ? "" : "es",
             tow_drawing_time(timeline->step_ns, step),
             tow_drawing_share(tow_plan_timeline_bubble_ppm(timeline), bubble),
             tow_drawing_time(timeline->period_ns, period),
             tow_drawing_share(tow_plan_timeline_period_bubble_ppm(timeline),
                               period_bubble));
}

uint32_t tow_drawing_bubble_ppm(const tow_drawing_t *drawing, uint32_t device)
{
    const int64_t step_ns = drawing->timeline->step_ns;
    const __int128 idle_ns = drawing->timeline->devices[device].bubble_ns;
    return step_ns == 0
               ? 0
               : (uint32_t)((idle_ns * 1000000 + step_ns / 2) / step_ns);
}

uint32_t tow_drawing_chunk(const tow_drawing_t *drawing, uint32_t stage)
{
    const uint32_t *devices = drawing->schedule->stage_devices;
    uint32_t chunk = 0;
    for (uint32_t s = 0; s < stage; s++)
        chunk += devices[s] == devices[stage];
    return chunk;
}

/* -- JSON ------------------------------------------------------------------ */

static void put(json_t *object, const char *key, json_t *take_value)
{
    json_object_set_new(object, key, take_value);
}

static json_t *number_of(uint64_t number)
{
    return json_integer((json_int_t)number);
}

static json_t *action_of(tow_plan_action_t action,
                         const tow_plan_interval_t *interval)
{
    char text[TOW_PLAN_ACTION_TEXT_MAX];
    json_t *object = json_object();
    put(object, "action", json_string(tow_plan_action_format(action, text)));
    put(object, "kind", json_string(tow_plan_action_kind_name(action.kind)));
    put(object, "stage", number_of(action.stage));
    if (tow_plan_action_has_microbatch(action.kind))
        put(object, "microbatch", number_of(action.microbatch));
    put(object, "start_ns", json_integer(interval->start_ns));
    put(object, "end_ns", json_integer(interval->end_ns));
    return object;
}

static json_t *memory_of(const tow_plan_device_times_t *times)
{
    json_t *array = json_array();
    for (size_t i = 0; i < times->memory.count; i++)
        json_array_append_new(
            array,
            json_pack("[I, I]", (json_int_t)times->memory.items[i].time_ns,
                      (json_int_t)times->memory.items[i].bytes));
    return array;
}

static json_t *device_of(const tow_drawing_t *drawing, uint32_t device)
{
    const tow_plan_device_times_t *times = &drawing->timeline->devices[device];
    const tow_plan_actions_t *list = &drawing->schedule->devices[device];
    json_t *actions = json_array();
    json_t *stages = json_array();
    for (size_t i = 0; i < list->count; i++)
        json_array_append_new(actions,
                              action_of(list->items[i], &times->intervals[i]));
    for (uint32_t s = 0; s < drawing->schedule->shape.stage_count; s++)
        if (drawing->schedule->stage_devices[s] == device)
            json_array_append_new(stages, number_of(s));
    json_t *object = json_object();
    put(object, "device", number_of(device));
    put(object, "stages", stages);
    put(object, "busy_ns", json_integer(times->busy_ns));
    put(object, "bubble_ns", json_integer(times->bubble_ns));
    put(object, "peak_activations", number_of(times->activation_count_peak));
    put(object, "peak_inputs", number_of(times->input_count_peak));
    put(object, "peak_bytes", number_of(times->bytes_peak));
    put(object, "mean_bytes", number_of(times->bytes_mean));
    put(object, "actions", actions);
    if (drawing->has_memory) put(object, "memory", memory_of(times));
    return object;
}

void tow_drawing_print_json(const tow_drawing_t *drawing, FILE *out)
{
    const tow_plan_timeline_t *timeline = drawing->timeline;
    json_t *devices = json_array();
    for (uint32_t d = 0; d < timeline->device_count; d++)
        json_array_append_new(devices, device_of(drawing, d));
    json_t *object = json_object();
    /* The path of a file may not be UTF-8. */
    json_t *name = json_string(drawing->name);
    put(object, "schedule", name != NULL ? name : json_null());
    put(object, "stages", number_of(drawing->schedule->shape.stage_count));
    put(object, "microbatches",
        number_of(drawing->schedule->shape.microbatch_count));
    put(object, "step_ns", json_integer(timeline->step_ns));
    put(object, "period_ns", json_integer(timeline->period_ns));
    put(object, "bubble_ppm",
        number_of(tow_plan_timeline_bubble_ppm(timeline)));
    put(object, "period_bubble_ppm",
        number_of(tow_plan_timeline_period_bubble_ppm(timeline)));
    put(object, "devices", devices);
    json_dumpf(object, out, JSON_COMPACT);
    fprintf(out, "\n");
    json_decref(object);
}
