// Marks what liblockstep.so exports; everything else stays hidden.
#pragma once

#define LOCKSTEP_API __attribute__((visibility("default")))
