/* tow_compile_child: see child_work.c. */
#include "device/compiler/child.h"

int main(int argc, char **argv)
{
    return tow_compile_child_main(argc, argv);
}
