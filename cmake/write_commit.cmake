# cmake -DSOURCE=<checkout> -DHEADER=<file> -P write_commit.cmake
# Writes the checkout's commit as PERCHERON_COMMIT, with "-changed" where tracked files differ from it;
# leaves the file alone when it says so already, so that nothing is compiled again.
execute_process(
  COMMAND git -C "${SOURCE}" describe --always --abbrev=12 --exclude=* --dirty=-changed
  OUTPUT_VARIABLE commit
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
  RESULT_VARIABLE failed)
if(failed OR NOT commit)
  set(commit unknown)
endif()
set(text "#pragma once\n\n#define PERCHERON_COMMIT \"${commit}\"\n")
if(EXISTS "${HEADER}")
  file(READ "${HEADER}" before)
endif()
if(NOT text STREQUAL "${before}")
  file(WRITE "${HEADER}" "${text}")
endif()
