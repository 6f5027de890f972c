#include "session/clock_offset.h"

#include "session/tuning.h"

int64_t tow_clock_offset_error_ns(const tow_clock_offset_t *offset,
                                  int64_t now_ns)
{
    int64_t age_ns = now_ns - offset->taken_ns;
    return offset->error_ns + age_ns / 1000000 * TOW_SESSION_DRIFT_PPM;
}

void tow_clock_offset_add(tow_clock_offset_t *offset,
                          const tow_clock_offset_sample_t *sample)
{
    const uint64_t now_ns = (uint64_t)sample->now_ns;
    if (sample->echo_ns == 0 || sample->echo_ns > now_ns ||
        sample->echo_age_ns > now_ns - sample->echo_ns ||
        sample->sent_ns > INT64_MAX)
        return;
    int64_t round_trip_ns =
        (int64_t)(now_ns - sample->echo_ns - sample->echo_age_ns);
    int64_t error_ns = round_trip_ns / 2 + 1;
    if (offset->is_known &&
        error_ns > tow_clock_offset_error_ns(offset, sample->now_ns))
        return;
    *offset = (tow_clock_offset_t){
        .is_known = true,
        .offset_ns =
            sample->now_ns - round_trip_ns / 2 - (int64_t)sample->sent_ns,
        .error_ns = error_ns,
        .taken_ns = sample->now_ns,
    };
}
