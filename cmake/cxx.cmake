# Is the plugin for NIXL built (integrations/nixl)? It and its tests alone are C++.
include(CheckLanguage)
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
