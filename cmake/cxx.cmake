# Is the plugin for NIXL built (integrations/nixl)? It and its tests alone are C++.
# Its compiler is that of the C code, as sanitizers and fuzzers need.
include(CheckLanguage)
string(REGEX REPLACE "clang([^/]*)$" "clang++\\1" compiler "${CMAKE_C_COMPILER}")
if(CMAKE_C_COMPILER_ID STREQUAL "Clang" AND NOT CMAKE_CXX_COMPILER AND EXISTS ${compiler})
  set(CMAKE_CXX_COMPILER ${compiler})
endif()
check_language(CXX)
if(CMAKE_CXX_COMPILER)
  enable_language(CXX)
endif()
set(HAUL_NIXL OFF)
if("cxx_std_20" IN_LIST CMAKE_CXX_COMPILE_FEATURES)
  set(HAUL_NIXL ON)
else()
  message(STATUS "haul is built without the plugin for NIXL, which needs a C++20 compiler: "
    "sudo apt-get install g++")
endif()
