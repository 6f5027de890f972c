/* Stalled runs: notifies the stall_watcher, which may cancel them. */
#include <string.h>

#include "base/alloc.h"
#include "client/client_impl.h"
#include "env/tuning.h"

void tow_client_set_stall_watcher(tow_client_t *client,
                                  const tow_stall_watcher_t *stall_watcher)
{
    client->stall_watcher = *stall_watcher;
}

static void give_up(tow_client_t *client, run_record_t *record,
                    const tow_msg_run_stalled_t *stalled)
{
    if (record->is_given_up) return;
    record->is_given_up = true;
    tow_status_t cause = TOW_ERROR(
        TOW_DEADLINE_EXCEEDED, "cancelled after %llu s: %s",
        (unsigned long long)stalled->waited_ns / TOW_NS_PER_S, stalled->text);
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    tow_msg_failure_t failure = tow_failure_of(cause);
    cancel.run = record->id;
    cancel.failure = &failure;
    tow_status_ignore(tow_client_send(client, TOW_MESSAGE_CANCEL, &cancel.base),
                      "without a cluster there is nothing to cancel");
    tow_status_release(cause);
}

void tow_client_run_on_stall(tow_client_t *client,
                             const tow_msg_run_stalled_t *stalled)
{
    run_record_t *record = tow_map_find(&client->runs, stalled->run);
    if (record == NULL || client->stall_watcher.stalled == NULL) return;
    if (client->stall_watcher.stalled(
            client->stall_watcher.context,
            &(tow_stalled_run_t){.run = stalled->run,
                                 .waited_ns = stalled->waited_ns,
                                 .text = stalled->text}))
        give_up(client, record, stalled);
}
