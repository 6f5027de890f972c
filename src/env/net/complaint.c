#include "env/net/complaint.h"

#include "env/tuning.h"

#define CREDIT_NS_MAX (TOW_NET_COMPLAINT_BURST * TOW_NET_COMPLAINT_INTERVAL_NS)

void tow_net_complaints_init(tow_net_complaints_t *complaints, int64_t now_ns)
{
    *complaints = (tow_net_complaints_t){
        .credit_ns = CREDIT_NS_MAX,
        .last_ns = now_ns,
    };
}

static bool may_complain(tow_net_complaints_t *complaints, int64_t now_ns)
{
    int64_t credit_ns = complaints->credit_ns + (now_ns - complaints->last_ns);
    complaints->last_ns = now_ns;
    if (credit_ns > CREDIT_NS_MAX) credit_ns = CREDIT_NS_MAX;
    bool may = credit_ns >= TOW_NET_COMPLAINT_INTERVAL_NS;
    if (may) credit_ns -= TOW_NET_COMPLAINT_INTERVAL_NS;
    complaints->credit_ns = credit_ns;
    return may;
}

void tow_net_complain(tow_net_complaints_t *complaints, const tow_log_t *log,
                      int64_t now_ns, const char *event, const char *address,
                      tow_status_t cause)
{
    if (!tow_log_enabled(log, TOW_LOG_WARN)) return;
    if (!may_complain(complaints, now_ns)) {
        complaints->dropped_count++;
        return;
    }
    tow_log(log, TOW_LOG_WARN, event, TOW_F_STR("address", address),
            TOW_F_STATUS("cause", cause),
            TOW_F_U64("lines_left_out", complaints->dropped_count));
    complaints->dropped_count = 0;
}
