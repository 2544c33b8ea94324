// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-lower-schedule

"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{holds no pcp.schedule; run pcp-stage first}}
func.func @bare(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{computes something outside of its pcp.schedule}}
func.func @outside(%x: tensor<4xf32>) -> tensor<4xf32> {
  %t = stablehlo.tanh %x : tensor<4xf32>
  %o = builtin.unrealized_conversion_cast %t : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"(%o) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @m_0>):
    "pcp.yield"(%a) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "gpipe", microbatches = 1} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 1>], devices = [], sym_name = "m"} : () -> ()
func.func @twice(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %o = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"(%o) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @m_0>):
    "pcp.yield"(%a) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "gpipe", microbatches = 1} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
  // expected-error@+1 {{it has tasks or values on @m_0, which is in another pcp.schedule of its function; write the tasks of a device in one}}
  %t = "pcp.schedule"(%o) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @m_0>):
    "pcp.yield"(%a) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "gpipe", microbatches = 1} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
  %y, %z = builtin.unrealized_conversion_cast %s, %t : !pcp.on<tensor<4xf32>, @m_0>, !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>, tensor<4xf32>
  return %y, %z : tensor<4xf32>, tensor<4xf32>
}
