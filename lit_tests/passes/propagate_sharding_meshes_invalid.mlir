// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-import

"pcp.mesh"() {axes = [#pcp.axis<"x", 4>], devices = [], sym_name = "a"} : () -> ()
// expected-error@below {{@b has 2 members, and @a 4: meshes of one program are over the same devices; what runs on devices of its own is written as tasks of a pcp.schedule}}
"pcp.mesh"() {axes = [#pcp.axis<"y", 2>], devices = [], sym_name = "b"} : () -> ()

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [@d0, @d1], sym_name = "a"} : () -> ()
// expected-error@below {{@b and @a do not list the same devices in the same order}}
"pcp.mesh"() {axes = [#pcp.axis<"y", 2>], devices = [@d1, @d0], sym_name = "b"} : () -> ()

// -----

"pcp.mesh"() {axes = [#pcp.axis<"x", 2>, #pcp.axis<"y", 3>], devices = [], sym_name = "a"} : () -> ()
// expected-error@below {{its axes do not nest with those of @a: one begins at 2 members, another at 3}}
"pcp.mesh"() {axes = [#pcp.axis<"p", 3>, #pcp.axis<"q", 2>], devices = [], sym_name = "b"} : () -> ()

// -----

// expected-error@below {{has unequal shares; @a and @b need equal ones}}
"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], split = #pcp.split<"x", [3, 1]>, sym_name = "a"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"y", 2>], devices = [], sym_name = "b"} : () -> ()
