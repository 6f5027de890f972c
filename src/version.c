#include "towpath/towpath.h"

const char *tow_version(void)
{
    return TOW_VERSION_STRING;
}
