// The manager of KubeRay's operator as its own main.go builds it, but for the client limits and the log: upstream leaves the
// limits at client-go's 20 requests a second.
package main

import (
	"flag"
	"log"

	routev1 "github.com/openshift/api/route/v1"
	configapi "github.com/ray-project/kuberay/ray-operator/apis/config/v1alpha1"
	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/utils"
	"go.uber.org/zap/zapcore"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	qps := flag.Float64("kube-api-qps", 20, "requests per second")
	burst := flag.Int("kube-api-burst", 30, "requests at once")
	concurrency := flag.Int("concurrency", configapi.DefaultReconcileConcurrency, "reconciles at once")
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.Level(zapcore.ErrorLevel)))
	rest := ctrl.GetConfigOrDie()
	rest.QPS, rest.Burst, rest.UserAgent = float32(*qps), *burst, "kuberay-operator/"+utils.KUBERAY_VERSION

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, rayv1.AddToScheme, routev1.Install, configapi.AddToScheme} {
		must(add(scheme))
	}
	own := labels.SelectorFromSet(labels.Set{utils.KubernetesCreatedByLabelKey: utils.ComponentName})
	manager, err := ctrl.NewManager(rest, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:   cache.Options{ByObject: map[client.Object]cache.ByObject{&batchv1.Job{}: {Label: own}}},
	})
	must(err)
	stop := ctrl.SetupSignalHandler()
	var configuration configapi.Configuration
	clusters := ray.NewReconciler(stop, manager, ray.RayClusterReconcilerOptions{}, configuration)
	must(clusters.SetupWithManager(manager, *concurrency))
	must(ray.NewRayServiceReconciler(stop, manager, configuration).SetupWithManager(manager, *concurrency))
	must(ray.NewRayJobReconciler(stop, manager, ray.RayJobReconcilerOptions{}, configuration).SetupWithManager(manager, *concurrency))
	must(manager.Start(stop))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
