/* What executions have in common: those of one computation (execute.c) and
 * those of ports (port.c). */
#ifndef TOW_PJRT_EXECUTE_IMPL_H_
#define TOW_PJRT_EXECUTE_IMPL_H_

#include "pjrt/plugin_impl.h"

typedef PJRT_LoadedExecutable_Execute_Args execute_args_t;

void tow_plugin_results_clear(const execute_args_t *args, size_t result_count);
/* Locked. No result has been returned yet. */
void tow_plugin_results_free(const execute_args_t *args, size_t result_count);
/* The shards of one result. False: no memory. */
bool tow_plugin_result_make(const execute_args_t *args,
                            const slice_entry_t *slice, shard_type_t *type,
                            PJRT_Event *event, shard_group_t *group,
                            size_t result);
/* The event of all devices, if the caller asks for them. */
void tow_plugin_events_hand_out(const execute_args_t *args, PJRT_Event *event);
/* Errors of the cluster, not of the call, become the results' error, as if
 * they had occurred later: on its fast path JAX turns an error of the call
 * itself into a ValueError. Takes the status, and returns it if it is one of
 * the call. Not locked. */
tow_status_t tow_plugin_poison(PJRT_Executable *executable,
                               const execute_args_t *args,
                               tow_status_t take_status) TOW_MUST_USE;

#endif /* TOW_PJRT_EXECUTE_IMPL_H_ */
