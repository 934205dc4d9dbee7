# The target haul_xxhash. Without the development package the library's file has its ABI number in the name.
find_path(HAUL_XXHASH_INCLUDE xxhash.h)
find_library(HAUL_XXHASH_LIBRARY NAMES xxhash libxxhash.so.0)
if(NOT HAUL_XXHASH_LIBRARY)
  message(FATAL_ERROR "libxxhash is missing: sudo apt-get install libxxhash-dev")
endif()

add_library(haul_xxhash INTERFACE)
target_link_libraries(haul_xxhash INTERFACE ${HAUL_XXHASH_LIBRARY})
if(HAUL_XXHASH_INCLUDE)
  target_include_directories(haul_xxhash SYSTEM INTERFACE ${HAUL_XXHASH_INCLUDE})
else()
  message(STATUS "xxhash.h is missing: ${HAUL_XXHASH_LIBRARY} is used by the calls' own declarations")
  target_include_directories(haul_xxhash INTERFACE ${PROJECT_SOURCE_DIR}/src/core/compat)
endif()

# Run-time dispatch of XXH3 exists only on x86.
include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES ${HAUL_XXHASH_LIBRARY})
check_c_source_compiles("#include <xxh_x86dispatch.h>
int main(void) { return (int)XXH3_64bits(\"\", 0); }" HAUL_XXHASH_DISPATCH)
unset(CMAKE_REQUIRED_LIBRARIES)
if(HAUL_XXHASH_DISPATCH)
  target_compile_definitions(haul_xxhash INTERFACE HAUL_XXHASH_DISPATCH)
endif()
