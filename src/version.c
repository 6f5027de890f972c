#include "towpath/towpath.h"

__attribute__((visibility("default"))) const char *tow_version(void)
{
    return TOW_VERSION_STRING;
}
