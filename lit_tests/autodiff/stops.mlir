// RUN: pcp-opt %s --split-input-file --pass-pipeline='builtin.module(pcp-grad,pcp-inline-composites,pcp-simplify)' | filecheck %s --check-prefix=GRAD
// RUN: pcp-opt %s --split-input-file --pass-pipeline='builtin.module(pcp-jvp,pcp-inline-composites,pcp-simplify)' | filecheck %s --check-prefix=JVP
// RUN: pcp-opt %s --split-input-file --pass-pipeline='builtin.module(pcp-grad,pcp-jvp{func=main_grad},pcp-inline-composites,pcp-simplify)' | filecheck %s --check-prefix=TWO
// RUN: pcp-opt %s --split-input-file --pass-pipeline='builtin.module(pcp-simplify,pcp-grad,pcp-remat,pcp-legalize,cse)' | filecheck %s --check-prefix=LEGAL

// Nobody behind the last derivative sees a stop.
// GRAD-NOT: pcp.stop_gradient
// JVP-NOT: pcp.stop_gradient
// TWO-NOT: pcp.stop_gradient
// LEGAL-NOT: pcp.stop_gradient

// stop(x) · x: the derivative is stop(x), in each mode; the derivative's is zero.
// GRAD-LABEL: func.func @main_grad(
// GRAD-NEXT: %[[Y:.+]] = stablehlo.multiply %arg0, %arg0
// GRAD-NEXT: return %[[Y]], %arg0
// JVP-LABEL: func.func @main_jvp(
// JVP-NEXT: %[[Y:.+]] = stablehlo.multiply %arg0, %arg0
// JVP-NEXT: %[[T:.+]] = stablehlo.multiply %arg0, %arg1
// JVP-NEXT: return %[[Y]], %[[T]]
// TWO-LABEL: func.func @main_grad_jvp(
// TWO-DAG: %[[ZERO:.+]] = stablehlo.constant dense<0.000000e+00>
// TWO-DAG: %[[Y:.+]] = stablehlo.multiply %arg0, %arg0
// TWO-DAG: %[[T:.+]] = stablehlo.multiply %arg0, %arg1
// TWO: return %[[Y]], %arg0, %[[T]], %[[ZERO]]
// LEGAL-LABEL: func.func @main_grad(
// LEGAL: %[[Y:.+]] = stablehlo.multiply %arg0, %arg0
// LEGAL: %[[G:.+]] = stablehlo.multiply %{{.+}}, %arg0
// LEGAL: return %[[Y]], %[[G]]
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %s = "pcp.stop_gradient"(%x) : (tensor<f32>) -> tensor<f32>
  %y = stablehlo.multiply %s, %x : tensor<f32>
  return %y : tensor<f32>
}

// -----

// What a loop carries through a stop has no derivative; what goes beside it has.
// GRAD-LABEL: func.func @main_grad(
// GRAD: stablehlo.while
// GRAD-NOT: stablehlo.cosine
// GRAD: return
// JVP-LABEL: func.func @main_jvp(
// JVP: stablehlo.while
// JVP-NOT: stablehlo.cosine
// JVP: return
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %a = %x, %b = %x) : tensor<i32>, tensor<f32>, tensor<f32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %s = stablehlo.sine %a : tensor<f32>
      %t = "pcp.stop_gradient"(%s) : (tensor<f32>) -> tensor<f32>
      %u = stablehlo.multiply %b, %t : tensor<f32>
      stablehlo.return %j, %t, %u : tensor<i32>, tensor<f32>, tensor<f32>
    }
  return %r#2 : tensor<f32>
}

// -----

// A maximum that is stopped where it is subtracted, but not where it is added: the
// path that is left has its derivative.
// GRAD-LABEL: func.func @main_grad(
// GRAD: stablehlo.compare EQ
// GRAD: return
func.func @main(%x: tensor<4xf32>) -> tensor<f32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %s = "pcp.stop_gradient"(%m) : (tensor<f32>) -> tensor<f32>
  %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %d = stablehlo.subtract %x, %b : tensor<4xf32>
  %e = stablehlo.exponential %d : tensor<4xf32>
  %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %l = stablehlo.log %t : tensor<f32>
  %y = stablehlo.add %l, %m : tensor<f32>
  return %y : tensor<f32>
}

// -----

// A maximum that cancels (see shifts.py) still does where it is read through a stop too.
// GRAD-LABEL: func.func @main_grad(
// GRAD-NOT: stablehlo.compare
// GRAD: return
func.func @main(%x: tensor<4xf32>) -> tensor<f32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %s = "pcp.stop_gradient"(%m) : (tensor<f32>) -> tensor<f32>
  %b = stablehlo.broadcast_in_dim %m, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %d = stablehlo.subtract %x, %b : tensor<4xf32>
  %e = stablehlo.exponential %d : tensor<4xf32>
  %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %l = stablehlo.log %t : tensor<f32>
  %y = stablehlo.add %l, %m : tensor<f32>
  %z = stablehlo.multiply %y, %s : tensor<f32>
  return %z : tensor<f32>
}

// -----

// A rule of one's own that stops what its tangent is multiplied by has a transpose.
// GRAD-LABEL: func.func @main_grad(
// GRAD: %[[C:.+]] = stablehlo.cosine %arg0
// GRAD: return %{{.+}}, %[[C]]
// TWO-LABEL: func.func @main_grad_jvp(
// TWO: %[[ZERO:.+]] = stablehlo.constant dense<0.000000e+00>
// TWO: return {{.+}}, %[[ZERO]]
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.composite "jax.f" %x {decomposition = @f} : (tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.sine %x : tensor<f32>
  return %y : tensor<f32>
}
func.func private @f_jvp(%x: tensor<f32>, %t: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %y = stablehlo.sine %x : tensor<f32>
  %c = stablehlo.cosine %x : tensor<f32>
  %s = "pcp.stop_gradient"(%c) : (tensor<f32>) -> tensor<f32>
  %d = stablehlo.multiply %s, %t : tensor<f32>
  return %y, %d : tensor<f32>, tensor<f32>
}
"pcp.custom_jvp"() {primal = @f, jvp = @f_jvp} : () -> ()

// -----

// A rule for each mode: reverse mode has the one, forward mode the other.
// GRAD-LABEL: func.func @main_grad(
// GRAD: %[[C:.+]] = stablehlo.constant dense<5.000000e+00>
// GRAD: return %{{.+}}, %[[C]]
// JVP-LABEL: func.func @main_jvp(
// JVP: %[[C:.+]] = stablehlo.constant dense<3.000000e+00>
// JVP: %[[T:.+]] = stablehlo.multiply %arg1, %[[C]]
// JVP: return %{{.+}}, %[[T]]
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.composite "jax.f" %x {decomposition = @f} : (tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.tanh %x : tensor<f32>
  return %y : tensor<f32>
}
func.func private @f_jvp(%x: tensor<f32>, %t: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %y = stablehlo.tanh %x : tensor<f32>
  %c = stablehlo.constant dense<3.0> : tensor<f32>
  %d = stablehlo.multiply %t, %c : tensor<f32>
  return %y, %d : tensor<f32>, tensor<f32>
}
func.func private @f_forward(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.tanh %x : tensor<f32>
  return %y : tensor<f32>
}
func.func private @f_back(%g: tensor<f32>) -> tensor<f32> {
  %c = stablehlo.constant dense<5.0> : tensor<f32>
  %d = stablehlo.multiply %g, %c : tensor<f32>
  return %d : tensor<f32>
}
"pcp.custom_jvp"() {primal = @f, jvp = @f_jvp} : () -> ()
"pcp.custom_vjp"() {primal = @f, forward = @f_forward, backward = @f_back} : () -> ()

// -----

// A linear function whose rule applies it to the tangent is what it computes there: the
// derivative is 3 · 2, and there is an end to it.
// GRAD-LABEL: func.func @main_grad(
// GRAD: %[[C:.+]] = stablehlo.constant dense<6.000000e+00>
// GRAD: return %{{.+}}, %[[C]]
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.composite "jax.f" %x {decomposition = @f} : (tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> {
  %c = stablehlo.constant dense<2.0> : tensor<f32>
  %y = stablehlo.multiply %x, %c : tensor<f32>
  return %y : tensor<f32>
}
func.func private @f_jvp(%x: tensor<f32>, %t: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %y = stablehlo.composite "jax.f" %x {decomposition = @f} : (tensor<f32>) -> tensor<f32>
  %s = stablehlo.composite "jax.f" %t {decomposition = @f} : (tensor<f32>) -> tensor<f32>
  %c = stablehlo.constant dense<3.0> : tensor<f32>
  %d = stablehlo.multiply %s, %c : tensor<f32>
  return %y, %d : tensor<f32>, tensor<f32>
}
"pcp.custom_jvp"() {primal = @f, jvp = @f_jvp} : () -> ()
