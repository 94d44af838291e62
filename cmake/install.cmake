# What `cmake --install` puts below the prefix (`make install`), and the Debian packages that `cpack` makes of it
# (`make deb`). Nothing that is installed knows this source or its build: the program finds its plug-ins and its Python
# parts from where it lies itself.

include_guard(GLOBAL)

add_custom_target(percheron_install DEPENDS percheron)
install(TARGETS percheron RUNTIME DESTINATION bin COMPONENT percheron)
install(DIRECTORY DESTINATION lib/percheron COMPONENT percheron) # Where plug-ins are looked for.
foreach(plugin IN ITEMS percheron_cuda percheron_cudnn)
  if(TARGET ${plugin})
    add_dependencies(percheron_install ${plugin})
    install(TARGETS ${plugin} LIBRARY DESTINATION lib/percheron COMPONENT cuda)
  endif()
endforeach()

# --- data preparation in Python
install(PROGRAMS deploy/install/percheron-setup-python DESTINATION bin COMPONENT percheron)
install(
  DIRECTORY tools/percheron_prepare/percheron_prepare
  DESTINATION share/percheron/python
  COMPONENT percheron
  FILES_MATCHING PATTERN "*.py")
install(FILES tools/percheron_prepare/requirements.txt DESTINATION share/percheron/python
        COMPONENT percheron)

# --- for operators
install(
  DIRECTORY deploy/monitoring deploy/slurm deploy/kubernetes deploy/docker
  DESTINATION share/percheron
  COMPONENT percheron)
install(DIRECTORY deploy/demo/ DESTINATION share/percheron/examples COMPONENT percheron)
install(
  DIRECTORY docs/
  DESTINATION share/doc/percheron
  COMPONENT percheron
  FILES_MATCHING
  PATTERN "*.md"
  PATTERN "*.svg")
install(FILES README.md LICENSE NOTICE DESTINATION share/doc/percheron COMPONENT percheron)
install(FILES NOTICE DESTINATION share/doc/percheron RENAME copyright COMPONENT percheron)

# The daemon's unit and its options name the prefix, which is known when it is installed. Below /usr the options lie
# in /etc.
install(
  CODE "set(source \"${PROJECT_SOURCE_DIR}/deploy/systemd\")
set(prefix \"\${CMAKE_INSTALL_PREFIX}\")
if(prefix STREQUAL \"/usr\")
  set(etc /etc)
else()
  set(etc \"\${prefix}/etc\")
endif()
set(unit \"\$ENV{DESTDIR}\${prefix}/lib/systemd/system/percheron-node.service\")
message(STATUS \"Installing: \${unit}\")
file(READ \"\${source}/percheron-node.service\" text)
string(REPLACE \"/usr/bin/percheron\" \"\${prefix}/bin/percheron\" text \"\${text}\")
string(REPLACE \"/usr/share/\" \"\${prefix}/share/\" text \"\${text}\")
string(REPLACE \"/etc/percheron/\" \"\${etc}/percheron/\" text \"\${text}\")
file(WRITE \"\${unit}\" \"\${text}\")
set(options \"\$ENV{DESTDIR}\${etc}/percheron/node.env\")
if(EXISTS \"\${options}\")
  message(STATUS \"Left as it is: \${options}\")
else()
  message(STATUS \"Installing: \${options}\")
  configure_file(\"\${source}/node.env\" \"\${options}\" COPYONLY)
endif()"
  COMPONENT percheron)

# --- packages
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME percheron)
set(CPACK_PACKAGE_VENDOR "the Percheron maintainers")
set(CPACK_PACKAGE_CONTACT "the Percheron maintainers <maintainers@percheron.invalid>")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_SET_DESTDIR ON) # For the unit and /etc, as `make install` puts them.
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL percheron)
if(TARGET percheron_cuda)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PERCHERON_PACKAGE_NAME percheron)
set(CPACK_DEBIAN_PERCHERON_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PERCHERON_PACKAGE_DEPENDS "adduser")
set(CPACK_DEBIAN_PERCHERON_PACKAGE_RECOMMENDS "python3-venv, ca-certificates")
set(CPACK_COMPONENT_PERCHERON_DESCRIPTION
    "trains drafters for speculative decoding
Trains the small models (EAGLE-3, DFlash) that make serving a large language model
faster: in one process, or as a service on several machines, whose daemon is
percheron-node.service.")
set(CPACK_DEBIAN_PERCHERON_PACKAGE_CONTROL_EXTRA
    "${PROJECT_SOURCE_DIR}/deploy/debian/conffiles;${PROJECT_SOURCE_DIR}/deploy/debian/postinst"
    "${PROJECT_SOURCE_DIR}/deploy/debian/prerm;${PROJECT_SOURCE_DIR}/deploy/debian/postrm")
set(CPACK_DEBIAN_PERCHERON_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# CUDA's libraries come from NVIDIA, as packages or not: what is missing is said when a device is asked for.
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME percheron-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "percheron (= ${PROJECT_VERSION}), libc6, libstdc++6")
set(CPACK_COMPONENT_CUDA_DESCRIPTION
    "devices cuda:N for percheron
Plug-ins for NVIDIA GPUs. They need the driver and the libraries of CUDA 13: cuBLASLt,
and for some of what they do cuDNN and NCCL.")
include(CPack)
