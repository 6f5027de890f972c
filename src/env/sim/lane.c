#include "env/sim/sim_impl.h"

void tow_sim_lanes_close(tow_sim_node_t *node)
{
    (void)node;
}

void tow_sim_lanes_forget(tow_sim_node_t *node)
{
    (void)node;
}

void tow_sim_write_complete_first(tow_sim_node_t *node)
{
    (void)node;
}
