#include "env/net/log_limiter.h"

#include "env/tuning.h"

#define CREDIT_NS_MAX (TOW_NET_LOG_BURST * TOW_NET_LOG_INTERVAL_NS)

void tow_net_log_limiter_init(tow_net_log_limiter_t *log_limiter,
                              int64_t now_ns)
{
    *log_limiter = (tow_net_log_limiter_t){
        .credit_ns = CREDIT_NS_MAX,
        .last_ns = now_ns,
    };
}

static bool may_log(tow_net_log_limiter_t *log_limiter, int64_t now_ns)
{
    int64_t credit_ns =
        log_limiter->credit_ns + (now_ns - log_limiter->last_ns);
    log_limiter->last_ns = now_ns;
    if (credit_ns > CREDIT_NS_MAX) credit_ns = CREDIT_NS_MAX;
    bool may = credit_ns >= TOW_NET_LOG_INTERVAL_NS;
    if (may) credit_ns -= TOW_NET_LOG_INTERVAL_NS;
    log_limiter->credit_ns = credit_ns;
    return may;
}

void tow_net_log_limited(tow_net_log_limiter_t *log_limiter,
                         const tow_log_t *log, int64_t now_ns,
                         const char *event, const char *address,
                         tow_status_t cause)
{
    if (!tow_log_enabled(log, TOW_LOG_WARN)) return;
    if (!may_log(log_limiter, now_ns)) {
        log_limiter->suppressed_count++;
        return;
    }
    tow_log(log, TOW_LOG_WARN, event, TOW_F_STR("address", address),
            TOW_F_STATUS("cause", cause),
            TOW_F_U64("lines_left_out", log_limiter->suppressed_count));
    log_limiter->suppressed_count = 0;
}
