#define SPLIT
#include "experts/sm90_e4m3.cu"
