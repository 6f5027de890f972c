/* Simulated pipeline schedules for people and programs: `tow schedule`. */
#ifndef TOW_TOOL_SCHEDULE_DRAWING_H_
#define TOW_TOOL_SCHEDULE_DRAWING_H_

#include <stdbool.h>
#include <stdio.h>

#include "plan/schedule/schedule.h"
#include "plan/schedule/simulate.h"

typedef struct tow_drawing {
    const char *name; /* of the generator or the file; lent */
    const tow_plan_schedule_t *schedule; /* lent */
    const tow_plan_timeline_t *timeline; /* lent */
    bool has_memory; /* costs have bytes, so that memory means something */
} tow_drawing_t;

typedef struct tow_drawing_terminal {
    uint32_t width; /* columns */
    bool has_colours;
} tow_drawing_terminal_t;

/* The timeline of each device, a table of devices, and a summary. */
void tow_drawing_print(const tow_drawing_t *drawing,
                       const tow_drawing_terminal_t *terminal, FILE *out);
/* One JSON object on one line. */
void tow_drawing_print_json(const tow_drawing_t *drawing, FILE *out);
/* A picture that needs no other file. */
void tow_drawing_print_svg(const tow_drawing_t *drawing, FILE *out);

/* -- Shared by the three --------------------------------------------------- */

#define TOW_DRAWING_TEXT_MAX 32

/* "0", "950 ns", "12.50 us", "3 s". In `text`, or static. */
const char *tow_drawing_time(int64_t time_ns, char text[TOW_DRAWING_TEXT_MAX]);
/* "950 B", "12.50 kB". Returns `text`. */
const char *tow_drawing_bytes(uint64_t bytes, char text[TOW_DRAWING_TEXT_MAX]);
/* "12.3%" of millionths. Returns `text`. */
const char *tow_drawing_share(uint32_t ppm, char text[TOW_DRAWING_TEXT_MAX]);
/* "1f1b: 4 stages on 4 devices, 8 microbatches: step 33 us, ...", for the
 * terminal and the picture. */
void tow_drawing_summary(const tow_drawing_t *drawing, char *text,
                         size_t capacity);
/* What the device waits, in millionths of the step. */
uint32_t tow_drawing_bubble_ppm(const tow_drawing_t *drawing, uint32_t device);
/* How many stages of the same device come before this one. */
uint32_t tow_drawing_chunk(const tow_drawing_t *drawing, uint32_t stage);

#endif /* TOW_TOOL_SCHEDULE_DRAWING_H_ */
