/* Assemblies: objects made of existing shards, on the same devices. */
#ifndef TOW_CONTROLLER_ASSEMBLY_IMPL_H_
#define TOW_CONTROLLER_ASSEMBLY_IMPL_H_

#include "base/list.h"
#include "controller/types_impl.h"
#include "sched/sched.h"

typedef struct tow_ctl_assemblies {
    tow_list_t list; /* that wait to be granted */
} tow_ctl_assemblies_t;

void tow_ctl_assembly_begin(tow_ctl_client_t *client,
                            const tow_msg_assemble_t *message);
void tow_ctl_assembly_grant(tow_ctl_assembly_t *assembly);
void tow_ctl_assembly_refuse(tow_ctl_assembly_t *assembly,
                             tow_status_t take_status);
/* What it needs on its devices; borrowed. */
void tow_ctl_assembly_needs(const tow_ctl_assembly_t *assembly,
                            tow_object_t *const **out_sources,
                            size_t *out_count,
                            const tow_ticket_part_t **out_part);
void tow_ctl_assemblies_on_disconnect(tow_ctl_client_t *client,
                                      tow_status_t cause);
void tow_ctl_assemblies_destroy(tow_controller_t *controller);
/* O(assemblies). */
void tow_ctl_assemblies_check(const tow_controller_t *controller);

#endif /* TOW_CONTROLLER_ASSEMBLY_IMPL_H_ */
