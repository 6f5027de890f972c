#include <stdio.h>

int main(void)
{
    printf("tow " TOW_VERSION_STRING "\n");
    return 0;
}
