// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-verify-owners

"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
module @a attributes {pcp.device = {target = @x}} {
  func.func @apply(%w: tensor<2xf32>, %g: tensor<2xf32>) -> (tensor<2xf32> {pcp.name = "w", pcp.role = "param"}) {
    // expected-error@+1 {{it makes param "w", which every member along "dp" computes: @a and others of unlike targets round differently, and drift apart. Give it one owner: run pcp-share-updates before pcp-propagate-sharding, pcp-one-owner before pcp-partition}}
    %0 = stablehlo.subtract %w, %g : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
module @b attributes {pcp.device = {target = @y}} {
  func.func @apply(%w: tensor<2xf32>, %g: tensor<2xf32>) -> (tensor<2xf32> {pcp.name = "w", pcp.role = "param"}) {
    %0 = stablehlo.subtract %w, %g : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}

// -----

"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
module @a attributes {pcp.device = {target = @x}} {
  func.func @init(%w: tensor<2xf32>) -> (tensor<2xf32> {pcp.name = "w", pcp.role = "param"}) {
    // expected-error@+1 {{it makes param "w", which every member along "pp" computes}}
    %0 = stablehlo.tanh %w : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
module @b attributes {pcp.device = {target = @y}} {
  func.func @init(%w: tensor<2xf32>) -> (tensor<2xf32> {pcp.name = "w", pcp.role = "param"}) {
    %0 = stablehlo.tanh %w : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}

// -----

"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
module @a attributes {pcp.device = {target = @x}} {
  func.func @main(%x: tensor<f32>) -> tensor<f32> {
    // expected-error@+1 {{it meets members along "dp" in a collective inside, and each decides by its own rounding whether to go there}}
    %0 = stablehlo.while(%a = %x) : tensor<f32>
    cond {
      %t = stablehlo.tanh %a : tensor<f32>
      %c = stablehlo.compare LT, %t, %a : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %s = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<f32>) -> tensor<f32>
      stablehlo.return %s : tensor<f32>
    }
    return %0 : tensor<f32>
  }
}
module @b attributes {pcp.device = {target = @y}} {
  func.func @main(%x: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.while(%a = %x) : tensor<f32>
    cond {
      %t = stablehlo.tanh %a : tensor<f32>
      %c = stablehlo.compare LT, %t, %a : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %s = "pcp.all_reduce"(%a) {axes = ["dp"], kind = "sum", mesh = @m, ordered} : (tensor<f32>) -> tensor<f32>
      stablehlo.return %s : tensor<f32>
    }
    return %0 : tensor<f32>
  }
}
