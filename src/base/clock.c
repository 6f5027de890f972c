/* The tick counter is used only where the kernel's own clock source is the tick
 * counter: then it runs at one rate on all cores. The rate is measured between
 * two readings of the kernel's clock at least a window apart, so no start-up
 * waits for a calibration. Until then, and after every window, the kernel's
 * clock is read. */
#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/macros.h"
#include "base/tuning.h"

static int64_t kernel_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#if defined(__x86_64__)

static uint64_t read_ticks(void)
{
    return __builtin_ia32_rdtsc();
}

static bool kernel_trusts_ticks(void)
{
    char name[16] = "";
    FILE *file = fopen(
        "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        "re");
    if (file == NULL) return false;
    bool trusted =
        fgets(name, sizeof(name), file) != NULL && strcmp(name, "tsc\n") == 0;
    fclose(file);
    return trusted;
}

#else

static uint64_t read_ticks(void)
{
    return 0;
}

static bool kernel_trusts_ticks(void)
{
    return false;
}

#endif

/* Reads both clocks close together. False if the reading was interrupted. */
static bool read_pair(uint64_t *out_ticks, int64_t *out_ns)
{
    /* About ten times what an undisturbed reading takes at 2 to 4 GHz. */
    const uint64_t gap_ticks_max = 2000;
    uint64_t before = read_ticks();
    *out_ns = kernel_now_ns();
    uint64_t gap = read_ticks() - before;
    *out_ticks = before + gap / 2;
    return gap <= gap_ticks_max;
}

static void set_anchor(tow_fast_clock_t *clock, uint64_t ticks, int64_t now_ns)
{
    clock->anchor_ticks = ticks;
    clock->anchor_ns = now_ns;
}

void tow_fast_clock_init(tow_fast_clock_t *clock)
{
    *clock = (tow_fast_clock_t){.uses_ticks = kernel_trusts_ticks()};
    uint64_t ticks;
    int64_t now_ns;
    if (!clock->uses_ticks) return;
    if (!read_pair(&ticks, &now_ns))
        now_ns = 0; /* The next reading will be used. */
    set_anchor(clock, ticks, now_ns);
}

/* Stores the rate between the anchor and now, unless it differs from the
 * previous one: then the machine slept or migrated, and the next window
 * decides. */
static void measure_rate(tow_fast_clock_t *clock, uint64_t passed_ticks,
                         int64_t passed_ns)
{
    __extension__ typedef unsigned __int128 wide_t;
    uint64_t before = clock->ns_per_tick_q32;
    uint64_t rate = (uint64_t)(((wide_t)passed_ns << 32) / passed_ticks);
    uint64_t change = rate > before ? rate - before : before - rate;
    if (before != 0 && change > before >> 10) {
        clock->ns_per_tick_q32 = 0;
        clock->window_ticks = 0;
        return;
    }
    clock->ns_per_tick_q32 = rate;
    clock->window_ticks = (uint64_t)((wide_t)passed_ticks *
                                     TOW_TRACE_ANCHOR_WINDOW_NS / passed_ns);
}

static int64_t ask_kernel(tow_fast_clock_t *clock)
{
    uint64_t ticks;
    int64_t now_ns;
    if (!read_pair(&ticks, &now_ns)) return now_ns;
    bool has_anchor = clock->anchor_ns != 0 && ticks > clock->anchor_ticks;
    int64_t passed_ns = now_ns - clock->anchor_ns;
    if (has_anchor && passed_ns < TOW_TRACE_ANCHOR_WINDOW_NS) return now_ns;
    if (has_anchor) measure_rate(clock, ticks - clock->anchor_ticks, passed_ns);
    set_anchor(clock, ticks, now_ns);
    return now_ns;
}

int64_t tow_fast_clock_now_ns(tow_fast_clock_t *clock)
{
    if (TOW_UNLIKELY(!clock->uses_ticks)) return kernel_now_ns();
    uint64_t passed_ticks = read_ticks() - clock->anchor_ticks;
    int64_t now_ns;
    /* A window is short: the product stays far below 64 bits. */
    if (TOW_LIKELY(passed_ticks < clock->window_ticks))
        now_ns = clock->anchor_ns +
                 (int64_t)(passed_ticks * clock->ns_per_tick_q32 >> 32);
    else
        now_ns = ask_kernel(clock);
    if (now_ns < clock->last_ns) return clock->last_ns;
    clock->last_ns = now_ns;
    return now_ns;
}
