// A library that is no plug-in of ours, for plugin_loader_test.

extern "C" int somebody_elses_function() { return 0; }
