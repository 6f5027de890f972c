/* For siblings: how a simulation opens a client on its own env. All else is
 * include/towpath/towpath.h. */
#ifndef TOW_CLIENT_CLIENT_H_
#define TOW_CLIENT_CLIENT_H_

#include "env/env.h"

#endif /* TOW_CLIENT_CLIENT_H_ */
